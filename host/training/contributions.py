"""Contributions of drives as the screen judges them, and the reasons for refusing one. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.scanning import Scan


class Reason(StrEnum):
    """Why a contribution was refused; a label of `csd_updates_rejected_total`."""

    NOT_FINITE = "not_finite"
    SAMPLES = "samples"
    SECONDS = "seconds"
    NORM = "norm"
    LOSS = "loss"
    REPORT = "report"
    DIRECTION = "direction"
    OTHER = "other"


@dataclass(frozen=True)
class Refusal:
    """Why a contribution is refused: what is told of it, and the tensor that it is about, if it is about one."""

    reason: Reason
    detail: str
    tensor: str = ""

    @property
    def diverging(self) -> bool:
        """Whether this is how a training that diverges looks; the drive need not be at fault."""
        return self.reason in (Reason.NOT_FINITE, Reason.NORM, Reason.LOSS)

    def told(self, where: str) -> str:
        """Return an event's detail; `where` names the round or step."""
        return f"in {where}: {self.detail} [{self.reason}]"


def reason_of(detail: str) -> Reason:
    """Return the reason in a detail that `Refusal.told` made."""
    found = re.search(r"\[(\w+)\]\Z", detail)
    return Reason(found[1]) if found and found[1] in set(Reason) else Reason.OTHER


@dataclass(frozen=True)
class AssignedWork:
    """What the host gave a drive to do: records, repetitions counted, and steps over them."""

    samples: int
    steps: int


def dealt_passes(records: int, epochs: int, batch_size: int) -> AssignedWork:
    """Return what whole passes over a shard of so many records are."""
    return AssignedWork(records * epochs, -(-records // batch_size) * epochs)


class ReportedFigures(Protocol):
    """What a drive says of its part, besides its tensors."""

    @property
    def samples(self) -> int:
        """Records computed."""

    @property
    def loss(self) -> float:
        """Mean over them."""

    @property
    def seconds(self) -> PhaseSeconds:
        """By the drive's own clock."""

    @property
    def read_bytes(self) -> int:
        """Read from flash."""

    @property
    def peak_memory_bytes(self) -> int:
        """0 if not read."""


@dataclass(frozen=True)
class ScreenedContribution:
    """A drive's contribution to a round or step, as it is judged.

    Attributes:
        device: its name.
        dealt: what it was given.
        said: its report.
        steps_said: in its report; None where that has no such figure.
        scan: of its tensors; None of a probe, whose gradients are dropped.
        clock: whose seconds these are; ``modelled`` ones are not the drive's to say, and not looked at.
        table_seconds: what its calibration table says of this; None without one.
    """

    device: str
    dealt: AssignedWork
    said: ReportedFigures
    steps_said: int | None
    scan: Scan | None
    clock: str
    table_seconds: float | None = None

    @property
    def kind(self) -> str:
        """Among whose seconds these are looked at: those of the same clock, the host's apart."""
        return f"{self.clock} ({HOST})" if self.device == HOST else self.clock

    @property
    def record_seconds(self) -> float:
        """Seconds per record dealt."""
        return self.said.seconds.total / max(1, self.dealt.samples)


def not_finite(tensor: str) -> Refusal:
    """Return the refusal of a contribution with such a tensor."""
    return Refusal(Reason.NOT_FINITE, f"{tensor} has values that are no finite numbers", tensor)
