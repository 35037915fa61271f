"""Built-in schedules: each returns a factor of the learning rate for a step, from 0, of so many."""

from __future__ import annotations

import math
from typing import Annotated

from annotated_types import Ge, Gt, Le

from host.config.plugins.kinds import SCHEDULE

Share = Annotated[float, Ge(0), Le(1)]
Factor = Annotated[float, Gt(0), Le(1)]
Steps = Annotated[int, Ge(1), Le(10_000_000)]


@SCHEDULE.register("cosine", "Half a cosine, from 1 down to `floor`.")
class CosineSchedule:
    """``floor + (1 - floor) (1 + cos(pi step / steps)) / 2`` (Loshchilov and Hutter 2017, arXiv:1608.03983)."""

    def __init__(self, floor: Share = 0.0) -> None:
        """Make it.

        Args:
            floor: what the factor falls to.
        """
        self._floor = floor

    def __call__(self, step: int, steps: int) -> float:
        """Return the factor."""
        return self._floor + (1 - self._floor) * (1 + math.cos(math.pi * step / steps)) / 2


@SCHEDULE.register("step", "Times `gamma` after every `every` rounds or steps.")
class StepSchedule:
    """``gamma ** (step // every)``."""

    def __init__(self, every: Steps, gamma: Factor = 0.1) -> None:
        """Make it.

        Args:
            every: so many rounds or steps have one factor.
            gamma: what it is multiplied by then.
        """
        self._every, self._gamma = every, gamma

    def __call__(self, step: int, steps: int) -> float:
        """Return the factor."""
        return float(self._gamma ** (step // self._every))


@SCHEDULE.register("exponential", "Times `gamma` after every round or step.")
class ExponentialSchedule(StepSchedule):
    """``gamma ** step``."""

    def __init__(self, gamma: Factor) -> None:
        """Make it.

        Args:
            gamma: what the factor is multiplied by.
        """
        super().__init__(1, gamma)


@SCHEDULE.register("linear_warmup", "Up to 1 in `warmup` equal pieces, then 1.")
class LinearWarmup:
    """``min(1, (step + 1) / (warmup + 1))``."""

    def __init__(self, warmup: Steps) -> None:
        """Make it.

        Args:
            warmup: rounds or steps before the factor is 1.
        """
        self._warmup = warmup

    def __call__(self, step: int, steps: int) -> float:
        """Return the factor."""
        return min(1.0, (step + 1) / (self._warmup + 1))


@SCHEDULE.register("warmup_cosine", "`linear_warmup`, then `cosine` over the rounds or steps that are left.")
class WarmupCosine(LinearWarmup):
    """Rises to 1 in `warmup` pieces, then falls to `floor` by half a cosine."""

    def __init__(self, warmup: Steps, floor: Share = 0.0) -> None:
        """Make it.

        Args:
            warmup: rounds or steps before the factor is 1.
            floor: what it falls to.
        """
        super().__init__(warmup)
        self._fall = CosineSchedule(floor)

    def __call__(self, step: int, steps: int) -> float:
        """Return the factor."""
        return min(super().__call__(step, steps), self._fall(max(0, step - self._warmup), max(1, steps - self._warmup)))
