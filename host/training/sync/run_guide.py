"""What guides a run beside its plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from host.core.tuning.batch_tuner import BatchTuner


@dataclass(frozen=True)
class RunGuide:
    """Who decides on a run while it goes on.

    Attributes:
        tuner: decides on batches; None for the plan's.
        pause: whether the round shall end with the steps that have begun.
    """

    tuner: BatchTuner | None = None
    pause: Callable[[], bool] = lambda: False


PLANNED = RunGuide()
"""All is as the plan says."""
