"""Structure of a decision on a cut, with what is known of every cut. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from csd_emu.perfmodel.split.split_problem import SplitProblem
from host.core.figure_bands import Band, span_of


@dataclass(frozen=True)
class CutRow:
    """One cut.

    Attributes:
        layer: the host's first one; None with nothing moved.
        drive_layers: how many the drives keep.
        step_seconds: of the array; None if it was not worked out, for it cannot be the best, or cannot be at all.
        at_least_seconds: no step with this cut is shorter; None if there can be none.
        drive_seconds: what the slowest drive reads and computes.
        host_seconds: forward and backward pass of the host's layers, for the records of all.
        traffic_bytes: over the host's side of the link in a step, both ways, all drives.
        moved_parameters: share of the model's exchanged bytes that the host keeps.
        moved_compute: share of the model's computing that the host has, in seconds of a drive.
        drive_memory_bytes: that the drive which needs most needs at least, computing in parts if it may.
        host_memory_bytes: that the tail needs.
        heavy: whether what moves is heavy enough on the wire, and saves bytes there, for `relieve_wire`; true of all
            where no rule asks for it.
        relieves: whether it would win with a host that is no faster than a drive: by relieving the wire. Known of cuts
            that are heavy, where there is a choice; true of nothing moved, and of all where no rule asks for it.
        refused: why there can be no such cut; empty if there can.
        bands: of the seconds, as far as they are known, by the profiles' figures.
    """

    layer: str | None
    drive_layers: int
    step_seconds: float | None
    at_least_seconds: float | None
    drive_seconds: float
    host_seconds: float
    traffic_bytes: float
    moved_parameters: float
    moved_compute: float
    drive_memory_bytes: float
    host_memory_bytes: float
    heavy: bool
    relieves: bool
    refused: str = ""
    bands: Mapping[str, Band] = field(default_factory=dict, hash=False)

    def with_ends(self, *ends: CutRow) -> CutRow:
        """Return the same with its bands, from what it is at the ends of the profiles'."""
        names = ("step_seconds", "at_least_seconds", "drive_seconds", "host_seconds")
        figures = {name: [getattr(row, name) for row in (self, *ends)] for name in names}
        return replace(self, bands={name: span_of(own) for name, own in figures.items() if None not in own})


@dataclass(frozen=True)
class CutDecision:
    """Where the model is cut.

    Attributes:
        layer: the host's first one; None: every layer stays on the drives.
        drive_layers: how many the drives keep.
        step_seconds: predicted, with this cut.
        unmoved_seconds: predicted with nothing moved; None if that does not fit.
        reason: in a sentence.
        notes: what else must be known, in sentences.
        overlapped: whether the exchange overlaps what drives compute, at least with nothing moved.
        rows: every cut, from the latest to the earliest; the first one moves nothing.
        policy: who decided, as the job file has it.
    """

    layer: str | None
    drive_layers: int
    step_seconds: float
    unmoved_seconds: float | None
    reason: str
    notes: tuple[str, ...]
    overlapped: bool
    rows: tuple[CutRow, ...]
    policy: str = "auto"

    @property
    def gain(self) -> float | None:
        """How many times as long a step is with nothing moved."""
        return None if self.unmoved_seconds is None else self.unmoved_seconds / self.step_seconds

    @property
    def row(self) -> CutRow:
        """The chosen cut."""
        return next(row for row in self.rows if row.drive_layers == self.drive_layers)


class SplitPolicy(Protocol):
    """Decides where a model is cut; made without arguments."""

    def decide(self, situation: SplitProblem) -> CutDecision:
        """Return where the model is cut.

        Args:
            situation: model, devices, link and schedule.

        Raises:
            ConfigurationError: no cut fits into the memory that there is.
        """
