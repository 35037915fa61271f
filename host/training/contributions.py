"""Contributions of drives as the screen judges them, and the reasons for refusing one. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.session_frames import Trained
from firmware_agent.common.frames.step_frames import Stepped
from host.core.tensor_sums import Scan


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


@dataclass(frozen=True)
class ScreenedContribution:
    """A drive's contribution to a round or step, as it is judged.

    Attributes:
        device: its name.
        dealt: what it was given.
        said: its report.
        scan: of its tensors; None of a probe, whose gradients are dropped.
        clock: whose seconds these are; ``modelled`` ones are not the drive's to say, and not looked at.
        table_seconds: what its calibration table says of this; None without one.
        by_program: whether a client program did it, which takes as many records and steps as it likes.
    """

    device: str
    dealt: AssignedWork
    said: Trained | Stepped
    scan: Scan | None
    clock: str
    table_seconds: float | None = None
    by_program: bool = False

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
