"""Record of how far a round's seconds rest on sampled steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from host.core.sampling.stratum_record import StratumRecord

_MOST_NAMES = 8


class DriveSeconds(msgspec.Struct, frozen=True):
    """A drive's seconds on the clock ``sampled``, as a virtual machine counts them: before its profile scales them.

    Attributes:
        seconds: of its steps.
        half_width_seconds: of their 95 % interval.
    """

    seconds: float
    half_width_seconds: float

    @property
    def error(self) -> float:
        """Half width of the interval, over the seconds."""
        return self.half_width_seconds / self.seconds if self.seconds else 0.0


class SamplingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far seconds on the clock ``sampled`` rest on steps that virtual machines counted.

    Attributes:
        counted_steps: steps that were counted, for these seconds.
        steps: steps that they are the seconds of, of all drives.
        error: half width of the 95 % interval of the seconds, over the seconds.
        start_share: what the first steps of a job, batch size or round took longer than later ones, over all seconds:
            these are few, and those of one drive stand for all.
        not_counted: drives of which a kind of step could not be counted: their seconds lack it.
        strata: the kinds of steps since the run began, or was resumed: those with most seconds.
        drives: all others, with their own seconds and intervals; `error` is of the least certain of them.
    """

    counted_steps: int
    steps: int
    error: float
    start_share: float
    not_counted: list[str] = msgspec.field(default_factory=list)
    strata: list[StratumRecord] = msgspec.field(default_factory=list)
    drives: dict[str, DriveSeconds] = msgspec.field(default_factory=dict)

    @property
    def text(self) -> str:
        """The same for people; of drives whose seconds are missing the first few are named."""
        told = (
            f"{self.counted_steps:,} of {self.steps:,} steps were counted on a virtual machine: "
            f"seconds ±{self.error:.2%} (95 %), slower first steps are {self.start_share:+.2%} of them"
        )
        return f"{told}; {self.missing}" if self.not_counted else told

    @property
    def missing(self) -> str:
        """Whose seconds lack something, for people; empty if nobody's do."""
        more = len(self.not_counted) - _MOST_NAMES
        named = ", ".join(self.not_counted[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        return f"seconds of {named} are missing: a kind of their steps could not be counted" if named else ""

    def mark(self, seconds: str) -> str:
        """Return a figure of seconds with its error: ``0.705 ±0.2%``, or ``≥0.705`` if some are missing."""
        return f"≥{seconds}" if self.not_counted else f"{seconds} ±{self.error:.1%}"


def add_sampling(rounds: Sequence[tuple[SamplingRecord | None, float]]) -> SamplingRecord | None:
    """Return the record of several rounds with the seconds of each; None if none of them has one.

    Errors of one stratum's mean are the same in all rounds, so they add up.
    """
    records = [(record, seconds) for record, seconds in rounds if record is not None]
    seconds = sum(each for _, each in records)
    if not records:
        return None

    def mean(values: Sequence[float]) -> float:
        return sum(v * s for v, (_, s) in zip(values, records, strict=True)) / seconds if seconds else 0.0

    def drive(name: str) -> DriveSeconds:
        own = [(each.seconds, each.half_width_seconds) for record, _ in records if (each := record.drives.get(name))]
        return DriveSeconds(*map(math.fsum, zip(*own, strict=True)))

    return SamplingRecord(
        counted_steps=sum(record.counted_steps for record, _ in records),
        steps=sum(record.steps for record, _ in records),
        error=mean([record.error for record, _ in records]),
        start_share=mean([record.start_share for record, _ in records]),
        not_counted=sorted({device for record, _ in records for device in record.not_counted}),
        strata=records[-1][0].strata,
        drives={name: drive(name) for name in dict.fromkeys(name for record, _ in records for name in record.drives)},
    )
