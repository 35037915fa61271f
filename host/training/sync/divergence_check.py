"""Checks that a synchronous training does not diverge: of each step, and of the weights."""

from __future__ import annotations

from collections.abc import Mapping

from firmware_agent.common.slices import Array
from host.config.job_file import JobConfig
from host.core.records import OnEvent
from host.core.scanning import first_not_finite
from host.training.device_conduct import all_diverge, diverged
from host.training.sync.step_result import StepResult


class DivergenceCheck:
    """Ends a run whose gradients, losses or weights are no finite numbers, or explode in all drives."""

    def __init__(self, job: JobConfig, on_event: OnEvent) -> None:
        """Check a training of `job`; `on_event` is called before its end."""
        self._job, self._on_event = job, on_event

    def check_step(self, number: int, result: StepResult, weights: Mapping[str, Array]) -> None:
        """Return if somebody's part of a step counts, or nobody's for other reasons.

        Raises:
            Diverged: all that came is of a training that diverges; or the host's part does.
        """
        where = f"step {number}"
        if result.not_finite:
            what = f"the gradient of {result.not_finite}, which the host has of the model, is no finite number"
            raise diverged(self._on_event, self._job, where, what=what)
        if not result.devices and all_diverge(list(result.failed.values())):
            self.check_weights(where, weights)
            raise diverged(self._on_event, self._job, where, list(result.failed.values()))

    def check_weights(self, where: str, weights: Mapping[str, Array]) -> None:
        """Return if all weights are finite numbers.

        Raises:
            Diverged: they are not.
        """
        if bad := first_not_finite(weights):
            what = f"the weights of {bad} are no finite numbers any more, after gradients that were"
            raise diverged(self._on_event, self._job, where, what=what)
