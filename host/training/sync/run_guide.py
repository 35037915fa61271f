"""What guides a run beside its plan, and follows its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from host.core.records import RetuneRecord, StepRecord
from host.core.tuning.batch_tuner import BatchTuner


@dataclass(frozen=True)
class RunGuide:
    """Who decides on a run while it goes on, and who is shown its steps.

    Attributes:
        tuner: decides on batches; None for the plan's.
        pause: whether the round shall end with the steps that have begun.
        on_step: is given each step that has ended, and when it did in the array's time.
        on_retune: is given new batch sizes.
    """

    tuner: BatchTuner | None = None
    pause: Callable[[], bool] = lambda: False
    on_step: Callable[[StepRecord, float], None] = lambda _, __: None
    on_retune: Callable[[RetuneRecord], None] = lambda _: None


PLANNED = RunGuide()
"""All is as the plan says."""
