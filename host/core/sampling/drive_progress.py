"""Where a drive stands in a run of which steps are counted, and what it did since the last record."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.sampling.strata import Size, Stratum


@dataclass
class DriveProgress:
    """What is known of a drive.

    Attributes:
        steps: its steps of each size.
        rounds: how many it began.
        levels: of each size.
        doubted: stratum -> a step that did not fit it, or None if a look did not, until a step of it was counted.
    """

    steps: Counter[Size] = field(default_factory=Counter)
    rounds: int = 0
    levels: Counter[Size] = field(default_factory=Counter)
    doubted: dict[Stratum, PhaseSeconds | None] = field(default_factory=dict)


@dataclass
class DriveTotals:
    """What a device did since the last record.

    Attributes:
        taken: stratum -> steps that its mean stands for.
        shares: stratum -> sum, over these steps, of one over how many were counted by then.
        own: stratum -> steps of its own that were counted.
        own_seconds: of these.
        failed: whether a stratum had no counted step.
    """

    taken: Counter[Stratum] = field(default_factory=Counter)
    shares: defaultdict[Stratum, float] = field(default_factory=lambda: defaultdict(float))
    own: Counter[Stratum] = field(default_factory=Counter)
    own_seconds: float = 0.0
    failed: bool = False
