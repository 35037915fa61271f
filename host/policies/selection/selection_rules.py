"""Limits of a planner, and its decision. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from firmware_agent.common.errors import ConfigurationError
from host.config.preference import Preference
from host.config.sync_section import TuningSection
from host.policies.selection.cluster import Estimate, TrialResult


@dataclass(frozen=True)
class Constraints:
    """What a configuration must keep to.

    Attributes:
        deadline_seconds: of the whole training.
        watts: most mean watts of everything that is counted.
        joules: most joules of the whole training.
        include: nodes that must take part.
        exclude: nodes that must not.
        unused_powered: whether drives that take no part idle; else they draw nothing.
    """

    deadline_seconds: float | None = None
    watts: float | None = None
    joules: float | None = None
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    unused_powered: bool = True

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            ConfigurationError: a limit is not positive, or a node is both included and excluded.
        """
        for name, limit in (("deadline", self.deadline_seconds), ("watts", self.watts), ("joules", self.joules)):
            if limit is not None and not 0 < limit < math.inf:
                raise ConfigurationError(f"{name}: {limit!r} is no limit; it must be a positive number")
        if both := sorted(self.include & self.exclude):
            raise ConfigurationError(f"{both[0]} is both included and excluded; leave it out of one of them")


@dataclass(frozen=True)
class SelectionRules:
    """How a plan is made.

    Attributes:
        preference: what is best.
        constraints: what must hold.
        steps: of each trial, a multiple of `window`; 0 for a plan from tables alone.
        window: for so many steps who takes part is fixed.
        most_share: of the whole training's seconds, what trials may cost beyond what the best would have cost.
        confidence: with which ranges hold.
        batch_size: of every node; None: STANNIS chooses.
        tuning: how STANNIS chooses.
        critical_batch: records of a step beyond which more of them hardly save steps; None: a record is a record.
        follows_noise: whether it is the gradient noise scale, as measured by the time of each further look.
    """

    preference: Preference
    constraints: Constraints = Constraints()
    steps: int = 5
    window: int = 1
    most_share: float = 0.05
    confidence: float = 0.95
    batch_size: int | None = None
    tuning: TuningSection = field(default_factory=TuningSection)
    critical_batch: float | None = None
    follows_noise: bool = False

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            ConfigurationError: a number is out of its bounds.
        """
        for message, broken in {
            f"{self.steps} steps and a share of {self.most_share}; steps, shares >= 0": (
                self.steps < 0 or not 0 <= self.most_share <= 1
            ),
            f"{self.steps} steps in windows of {self.window}; use a multiple of it": (
                self.window < 1 or self.steps % self.window
            ),
            f"a confidence of {self.confidence} is not between 0 and 1": not 0 < self.confidence < 1,
            f"a batch of {self.batch_size} is less than 1": self.batch_size is not None and self.batch_size < 1,
        }.items():
            if broken:
                raise ConfigurationError(f"planner: {message}")


def score_weights(rules: SelectionRules) -> tuple[float, float]:
    """Return what the score is made of: weights of the logarithms of time and of power; E = P T (Gu et al.)."""
    preference = rules.preference
    return preference.time + preference.energy, preference.power + preference.energy


@dataclass(frozen=True)
class PlannedAgain:
    """What is left of a training when its devices are looked at again.

    Attributes:
        share: of its records that are left.
        margin: by how much better others must be, as a share of what is preferred, to take over.
        nodes: that train; none in a training that has not begun.
        trials: that were taken before.
        exchange: whether the exchange takes another time than it did in these.
        step: after which it is looked at.
        critical_batch: as measured by then; None if that is no news.
    """

    share: float = 1.0
    margin: float = 0.0
    nodes: tuple[str, ...] = ()
    trials: int = 0
    exchange: bool = False
    step: int = 0
    critical_batch: float | None = None


@dataclass(frozen=True)
class SelectionPlan:
    """What is best, and how sure that is.

    Attributes:
        chosen: the best.
        ranked: feasible ones, best first, the chosen one first; at most 200.
        front: of time, watts and energy: none of the feasible ones is better in one and no worse in the others.
        reasons: sentences: why it wins, against all devices, one less, the host alone, the runner-up.
        sure: probability that no other one is better by more than 1 %.
        gap: that the search may have missed, as a share of what is preferred; 0 if it was exact.
        trials: what was measured.
        feasible: how many keep to the constraints, of all that the search looked at.
        at_ends: end of the profiles' bands -> name of what would be chosen there, of all that the search looked at.
    """

    chosen: Estimate
    ranked: tuple[Estimate, ...]
    front: tuple[Estimate, ...]
    reasons: tuple[str, ...]
    sure: float
    gap: float
    trials: tuple[TrialResult, ...] = ()
    feasible: int = 0
    at_ends: Mapping[str, str] = field(default_factory=dict)
