"""Structure of what `csd-emu reproduce planner` prints; see docs/reproduce.md. All is simulated: no real drive."""

from __future__ import annotations

import msgspec

from csd_lab.reproduce.hypertune_result import SIMULATED
from csd_lab.reproduce.verdict import HeadlineVerdict


class Choosing(msgspec.Struct, frozen=True):
    """How one way of choosing devices does over the cases.

    Attributes:
        who: chooses.
        hit_rate: share of the cases in which the choice's metric is the best's within 1 %, and it is in time.
        hit_rate_same_configuration: share that has the best's devices, whatever its batches cost, or is a hit; in time.
        within_5_percent: within 5 %, and in time.
        mean_regret: metric of the choice over the best's - 1.
        worst_regret: the largest.
        overhead: share of the training's seconds that is spent on trials, beyond what the choice would have taken.
        basis: of all this.
    """

    who: str
    hit_rate: float
    hit_rate_same_configuration: float
    within_5_percent: float
    mean_regret: float
    worst_regret: float
    overhead: float
    basis: str = SIMULATED


class Sensitivity(msgspec.Struct, frozen=True):
    """How the planner does with other trials, or in a noisier world.

    Attributes:
        of: ``steps`` of each trial, or ``noise``, the standard deviation of a device's seconds from step to step.
        value: of it.
        hit_rate, mean_regret, overhead: as in `Choosing`.
        time_error: median of |estimate / truth - 1| of the chosen configurations' seconds.
        energy_error: the same of their joules.
        basis: of all this.
    """

    of: str
    value: float
    hit_rate: float
    mean_regret: float
    overhead: float
    time_error: float
    energy_error: float
    basis: str = SIMULATED


class PublishedHitRate(msgspec.Struct, frozen=True):
    """What was published, and ours.

    Attributes:
        source: who published it.
        what: that the figure says.
        published: the figure.
        ours: ours of the same kind.
        basis: of ours.
    """

    source: str
    what: str
    published: float
    ours: float
    basis: str = SIMULATED


class PlannerReport(msgspec.Struct, frozen=True):
    """`csd-emu reproduce planner`.

    Attributes:
        clock: of all seconds but `wall_seconds`.
        seed: of the worlds.
        cases: how many.
        hard_cases: of them no fixed rule gets right.
        hit_rate_hard: of our planner, over these.
        beside: published headlines and ours.
        choosing: our planner, what else there is, and fixed rules.
        sensitivity: to steps and noise.
        notes: what to know when reading all this.
        files: that were written.
        wall_seconds: what it took.
        verdicts: on every headline.
    """

    clock: str
    seed: int
    cases: int
    hard_cases: int
    hit_rate_hard: float
    beside: list[PublishedHitRate]
    choosing: list[Choosing]
    sensitivity: list[Sensitivity]
    notes: list[str]
    files: list[str]
    wall_seconds: float
    verdicts: list[HeadlineVerdict] = []
