"""Screening of a step's contributions: of what is not believed nothing goes into the step, and events tell of it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from host.training.contributions import AssignedWork, Reason, Refusal, ScreenedContribution
from host.training.device_conduct import Conduct
from host.training.screening import Screen
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.sync.exchange.step_extension import DeviceOutcome
from host.training.sync.gradient_direction import LEAST_DEVICES, DirectionWatch, GradientSample, Sampler
from host.training.sync.step_result import StepAccounting


class StepScreening:
    """Judges what the devices of a run return, step after step.

    Attributes:
        screen: knows what is usual.
        conduct: is told of it.
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
        self.screen, self.conduct = Screen(), Conduct(lambda *_: None)
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
        dealt = AssignedWork(len(outcome.work.records), 1)
        return ScreenedContribution(device, dealt, said, None, scan, clock, table_seconds)

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
