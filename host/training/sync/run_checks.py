"""Checks of a synchronous training: what devices return is believable, it converges, drives hold what was planned."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from statistics import median_high, median_low

from csd_emu.util.node_names import HOST
from firmware_agent.common.slices import Array
from firmware_agent.common.units import format_bytes
from host.config.job_file import JobConfig
from host.core.device_time import COUNTED
from host.core.records import DeviceRound, DeviceStep, EventKind, OnEvent
from host.core.tensor_sums import first_not_finite
from host.policies.batching.device_speeds import DeviceClass
from host.training.contributions import AssignedWork, Reason, Refusal, ScreenedContribution
from host.training.device_conduct import Conduct, all_diverge, diverged
from host.training.screening import Screen
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.sync.exchange.step_extension import DeviceOutcome
from host.training.sync.gradient_direction import LEAST_DEVICES, DirectionWatch, GradientSample, Sampler
from host.training.sync.gradient_noise import NoiseScale
from host.training.sync.step_result import StepAccounting, StepResult

# A peak that is this share above the table's may come to more than there is at the next retune.
_TOLERANCE = 0.1
# Seconds so many times the table's, or the table's so many times those, in so many steps in a row, are no blip.
OFF_TABLE, OFF_STEPS = 1.5, 20


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


class TableWatch:
    """Says so once when drives hold more, or take other seconds, than their tables expect; one instance per run."""

    def __init__(self, classes: Mapping[str, DeviceClass], on_event: OnEvent) -> None:
        """Watch the devices that have a class; `on_event` is told."""
        self._classes, self._on_event = classes, on_event
        self._said: set[str] = set()
        # Steps in a row in which most drives were slower, or quicker, than their tables, negative for these.
        self._off_steps = 0

    def look_at_memory(self, parts: Sequence[DeviceRound]) -> None:
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

    def look_at_speeds(self, parts: Sequence[DeviceStep]) -> None:
        """Compare the seconds of one step, none of one that is known to be disturbed; a host's table is no drive's."""
        ratios = [part.slowdown for part in parts if part.device != HOST and part.slowdown] or [1.0]
        slow, quick = median_low(ratios), median_high(ratios)
        way = int(slow > OFF_TABLE) - int(quick < 1 / OFF_TABLE)
        if abs(self._off_steps) < OFF_STEPS:
            self._off_steps = way + (self._off_steps if self._off_steps * way > 0 else 0)
            if abs(self._off_steps) == OFF_STEPS:
                self._on_event(
                    HOST,
                    EventKind.NOTE,
                    f"most drives have taken {'more' if way > 0 else 'less'} than their calibration tables' seconds in "
                    f"{OFF_STEPS} steps, {slow if way > 0 else quick:.3g} times as long in the last (the middle one of "
                    f"{len(ratios)}): batches and plans rest on these tables; if nothing else runs on the drives, "
                    "measure them again with csd-emu calibrate",
                )


class StepScreening:
    """Judges what the devices of a run return, step after step.

    Attributes:
        screen: knows what is usual.
        conduct: is told of it.
        noise: of the gradients that are believed.
    """

    def __init__(self, accounting: StepAccounting, sizes: Mapping[str, int], coupled: bool, alike: bool) -> None:
        """Begin with nothing seen.

        Args:
            accounting: knows devices' clocks and tables.
            sizes: elements of each tensor that is trained.
            coupled: whether parts of a gradient may point away from each other in honest ones, for normalisation takes
                them out of the sum over all devices.
            alike: whether the devices' records are known to be alike (see `host.fleet.shards.dealt_alike`).
        """
        self.screen, self.conduct, self.noise = Screen(), Conduct(lambda *_: None), NoiseScale()
        self._accounting, self._coupled = accounting, coupled
        self._sampler, self._directions = Sampler(sizes, seed=0), DirectionWatch(alike)

    async def screened(
        self, number: int, works: int, outcomes: Sequence[DeviceOutcome], gathering: GradientBuffer
    ) -> list[DeviceOutcome]:
        """Return outcomes as far as they are believed; what is not goes into nothing from now on.

        Args:
            number: of the step.
            works: so many of the outcomes, the first ones, are of devices that take part.
            outcomes: of works, then of probes.
            gathering: the gradients of works.
        """
        believed, where = list(outcomes), f"step {number}"
        refused: dict[str, Refusal] = {}

        def judge() -> Collection[str]:
            parts = [self._judged(each, gathering if place < works else None) for place, each in enumerate(outcomes)]
            refused.update(gathering.screen.refused)
            refused.update(self.screen.judge([p for p in parts if p is not None and p.device not in refused]))
            gathering.screen.limits = self.screen.limits  # of those who were not judged
            return refused.keys() & {outcome.device for outcome in outcomes[:works]}

        await gathering.refuse(judge)
        seen = [each for each in outcomes[:works] if each.stepped is not None and each.device not in refused]
        if len(seen) >= LEAST_DEVICES and not self._coupled:
            samples = await asyncio.to_thread(self._sample, gathering, seen)
            refused |= self._directions.observe(number, samples)
            self.noise.observe({device: each for device, each in samples.items() if device not in refused})
        for place, outcome in enumerate(outcomes):
            if (why := refused.get(outcome.device)) is not None:
                at_once = why.reason is Reason.DIRECTION  # its gradients of all these steps are in them
                error = self.conduct.refuse(outcome.work.session, why, where, at_once)
                believed[place] = outcome if at_once else DeviceOutcome(outcome.work, None, error)
            elif outcome.stepped is not None and place < works:
                self.conduct.accept(outcome.work.session, where, outcome.stepped.loss)
        return believed

    def _judged(self, outcome: DeviceOutcome, gathering: GradientBuffer | None) -> ScreenedContribution | None:
        said, device = outcome.stepped, outcome.device
        if said is None:
            return None
        clock = self._accounting.accountant.time.clock(device, outcome.work.session.hello.clock)
        scan = None if gathering is None else gathering.screen.scan(device)
        table_seconds = self._accounting.expected_total(outcome) or None
        return ScreenedContribution(
            device, AssignedWork(len(outcome.work.records), 1), said, scan, clock, table_seconds
        )

    def _sample(self, gathering: GradientBuffer, outcomes: Sequence[DeviceOutcome]) -> dict[str, GradientSample]:
        """Return a sample of the gradient of each device that returned one."""
        gradients = {outcome.device: gathering.gradients(outcome.device) for outcome in outcomes}
        return {
            outcome.device: GradientSample(
                self._sampler.take(gradients[outcome.device]), outcome.stepped.samples, outcome.stepped.loss
            )
            for outcome in outcomes
            if outcome.stepped is not None and gradients[outcome.device]
        }
