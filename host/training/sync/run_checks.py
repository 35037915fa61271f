"""Checks of a synchronous training: that it does not diverge, and that drives hold what was planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firmware_agent.common.slices import Array
from firmware_agent.common.units import format_bytes
from host.config.job_file import JobConfig
from host.core.device_time import COUNTED
from host.core.records import DeviceRound, EventKind, OnEvent
from host.core.scanning import first_not_finite
from host.policies.batching.device_speeds import DeviceClass
from host.training.device_conduct import all_diverge, diverged
from host.training.sync.step_result import StepResult

# A peak that is this share above the table's may come to more than there is at the next retune.
_TOLERANCE = 0.1


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


class MemoryWatch:
    """Says so once when a drive holds more than its table expects; one instance per run."""

    def __init__(self, classes: Mapping[str, DeviceClass], on_event: OnEvent) -> None:
        """Watch the devices that have a class; `on_event` is told."""
        self._classes, self._on_event = classes, on_event
        self._said: set[str] = set()

    def look(self, parts: Sequence[DeviceRound]) -> None:
        """Compare the peaks of one step; of a process on this machine they say nothing of a drive."""
        for part in parts:
            known = self._classes.get(part.device)
            if known is None or part.clock != COUNTED or part.device in self._said or not part.peak_memory_bytes:
                continue
            expected = known.needed_bytes(part.samples)
            if part.peak_memory_bytes > (1 + _TOLERANCE) * expected:
                self._said.add(part.device)
                self._on_event(
                    part.device,
                    EventKind.NOTE,
                    f"its agent has held {format_bytes(part.peak_memory_bytes)}, its calibration table expects "
                    f"{format_bytes(expected)} at {part.samples} records; {format_bytes(known.memory.available_bytes)} "
                    "are there: batches may not fit, calibrate the model again",
                )
