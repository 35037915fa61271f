"""One synchronous step: records out, gradients in, the optimiser steps, time and energy are accounted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from firmware_agent.common.send_queue import TransferSettings
from host.core.states.peer_servers import PeerServers
from host.core.tensor_sums import UNLIMITED
from host.training.accounting import Accountant
from host.training.host_optimiser import TrainedModel
from host.training.sync.exchange.batch_norm_sums import Reductions
from host.training.sync.exchange.gradient_buffer import GradientBuffer, GradientScreen, WeightUpdate
from host.training.sync.exchange.slice_log import SliceLog
from host.training.sync.exchange.step_exchange import StepExchange
from host.training.sync.exchange.step_extension import DeviceOutcome, StepExtension, StepWork
from host.training.sync.exchange.weight_sender import FIFO, Outbound, StepTensors
from host.training.sync.host_part import HostPart, HostPartStep
from host.training.sync.run_checks import StepScreening
from host.training.sync.step_batches import StepAssignment
from host.training.sync.step_result import Expected, StepAccounting, StepReport, StepResult
from host.training.sync_plan import SyncPlan


@dataclass
class Underway:
    """A step that has begun.

    Attributes:
        number: its number in the run.
        dealt: what it was dealt; its works are one per device that takes part, in participant order.
        probed: whether somebody is probed beside it.
        learning_rate: that of a step with so many records.
        expected: device -> seconds that its part should take.
        gathering: its gradients.
        update: what it makes of the weights; it has the learning rate, unless devices are late.
        part: the host's part of the model; None if the devices have all.
        outcomes: of works, then of probes.
        announced: the settings that it was announced with.
        sending: those that have come since.
    """

    number: int
    dealt: StepAssignment
    probed: bool
    learning_rate: Callable[[int], float]
    expected: Expected | None
    gathering: GradientBuffer
    update: WeightUpdate
    part: HostPartStep | None
    outcomes: asyncio.Future[list[DeviceOutcome]]
    announced: TransferSettings
    sending: TransferSettings

    @property
    def devices(self) -> list[str]:
        """Names of the devices that take part."""
        return [work.device for work in self.dealt.works]

    def records(self, without: Collection[str] = ()) -> int:
        """Return how many records its devices compute, `without` those of some."""
        return sum(len(work.records) for work in self.dealt.works if work.device not in without)

    def sent_with(self, logs: Sequence[SliceLog]) -> TransferSettings:
        """Return how it was sent: by settings that came after it was announced, if all devices had them in time."""
        in_time = bool(logs) and all(log.timed is not None and log.timed.resent for log in logs)
        return self.sending if in_time else self.announced


class PartCounter(Protocol):
    """What knows devices' seconds better than they do (`host.training.sampling.step_counter`)."""

    def count_step(
        self,
        visit: Awaitable[list[DeviceOutcome]],
        outbound: Outbound,
        gathering: GradientBuffer,
        extensions: Sequence[StepExtension],
    ) -> Coroutine[Any, Any, list[DeviceOutcome]]:
        """Return what came of a step, with its own seconds; arguments are those of `StepExchange.visit`, and it."""


class StepEnding(Protocol):
    """What a step whose devices have reported makes of the weights: on this server, or with others."""

    @property
    def together(self) -> PeerServers | None:
        """The other servers that take the steps too; None if there is none."""

    async def end(self, stepper: Stepper, step: Underway, report: StepReport) -> StepResult:
        """See a step through.

        Raises:
            StateBehind: other servers have taken the step already.
        """


class OwnEnding:
    """The weights are this server's alone: gradients are stepped as they come, unless the optimiser needs all.

    What a device that is lost has sent stays in the step, if anyone else returns anything. If nobody does, only tensors
    that all had sent before are stepped, none if the optimiser needs all at once, and the result has no device.
    """

    together = None

    async def end(self, stepper: Stepper, step: Underway, report: StepReport) -> StepResult:
        """See a step through."""
        update, part = step.update, step.part
        if report.late:  # nothing is applied yet: such steps have a barrier
            update.rate = step.learning_rate(step.records(without=report.late))
        await step.gathering.finish(report.late)
        mixed = step.gathering.mixed
        counts = report.returned or (stepper.model.optimiser.needs_all is None and mixed)
        if part is not None and counts:
            await part.begin_update(report.late)
        if counts and update.whole:
            await asyncio.to_thread(update.step_all)
        if part is not None:
            part.ready.set()
        update.end()
        mixed = mixed or (stepper.coupled and bool(report.failed))
        if part is None:
            return stepper.accounting.result(report, mixed, update.rate)
        result = stepper.accounting.result(report, mixed or (part.exchange.mixed and report.returned), update.rate)
        return replace(result, placement=part.told(report.crossed), not_finite=part.not_finite)


class Stepper:
    """Takes steps on the weights of a model, in place; one instance per run.

    Attributes:
        model: what they change; unless its batch normalisation is ``frozen``, devices send buffers, to be averaged.
        tensors: those of it that cross.
        accounting: time and energy.
        screening: of what devices return.
        part: the host's part of the model; None if devices have the whole one.
        ending: what becomes of the weights.
        coupled: whether statistics that a lost device was part of are in the gradients of all others.
        counter: counts the seconds of what devices report, on the clock ``sampled``; else None.
    """

    def __init__(
        self,
        model: TrainedModel,
        plan: SyncPlan,
        exchange: StepExchange,
        accountant: Accountant,
        part: HostPart | None = None,
        alike: bool = False,
        ending: StepEnding | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            model: see above.
            plan: how, and what steps should cost.
            exchange: reaches the devices.
            accountant: composes time and energy.
            part: see above; on the same weights.
            alike: whether the devices' records are known to be alike (see `host.fleet.shards.dealt_alike`).
            ending: see above; None if the weights are this server's alone.
        """
        self.model, self.part, self.ending = model, part, ending or OwnEnding()
        batch_norm = plan.job.sync.batch_norm
        keeps_all = self.ending.together is not None
        self.tensors = tensors = StepTensors(model, batch_norm, None if part is None else part.tail, keeps_all)
        self.coupled = batch_norm == "synchronised"
        self.counter: PartCounter | None = None
        self.accounting = StepAccounting(accountant, plan, tensors.gradient_bytes)
        sizes = {name: model.weights[name].size for name in tensors.trained}
        self.screening = StepScreening(self.accounting, sizes, self.coupled, alike)
        self._exchange = exchange
        # The weights as the step before leaves them.
        self._last = tensors.release()
        self._last.add_all()

    @property
    def may_look_ahead(self) -> bool:
        """Whether a step may begin before the one before it is over.

        Not where a device may turn out to be late, or the weights are those of all servers: nobody has them before all
        have returned.
        """
        return self.accounting.waits_for_all and self.ending.together is None

    def begin(
        self,
        number: int,
        dealt: StepAssignment,
        learning_rate: Callable[[int], float],
        probes: Sequence[StepWork] = (),
        expected: Expected | None = None,
        sending: TransferSettings = FIFO,
    ) -> Underway:
        """Begin a step of the devices that records were `dealt` to; those of `probes` compute beside it, to be watched.

        `learning_rate` returns that of a step with so many records. Whoever takes longer than its `expected` seconds
        allow is late, if they are known (see `give_up_seconds`). Of overlapping steps one may begin while the one
        before is under way: a device gets each of its weights as soon as that one has stepped it.
        """
        works, probed = dealt.works, bool(probes)
        records = {work.device: len(work.records) for work in works}
        count, keeps_all = sum(records.values()), self.ending.together is not None
        rate = learning_rate(count) if count else 0.0  # without a record here others may have some
        update = WeightUpdate(self.model, self.tensors, rate, keeps_all)
        late_matters = not self.accounting.waits_for_all and expected is not None
        screen, tensors = self.screening.screen, self.tensors
        arriving = GradientScreen({name: self.model.weights[name] for name in tensors.buffers}, screen.limits)
        # Without a history what is too large is known when all have come.
        waits = late_matters or keeps_all or screen.limits == UNLIMITED
        gathering = GradientBuffer(tensors.specs, records, update.apply, waits, tensors.block_bytes, arriving)
        refused, part = arriving.refused, None
        extensions: list[StepExtension] = [Reductions(number, records, self.model.sums, screen, refused)]
        if self.part is not None:
            part = self.part.begin(number, works, update, late_matters, screen, refused)
            extensions.append(part.exchange)
        outbound = Outbound(number, self.tensors.sent, sending, self._last)
        self._last = update.release
        visit = self._exchange.visit(outbound, works, gathering, probes, extensions)
        if self.counter is not None:
            visit = self.counter.count_step(visit, outbound, gathering, extensions)
        outcomes = asyncio.ensure_future(visit)
        return Underway(
            *(number, dealt, probed, learning_rate, expected, gathering, update, part, outcomes), sending, sending
        )

    def resend(self, step: Underway, sending: TransferSettings) -> None:
        """Send by other settings what of an overlapping step has not left yet."""
        step.sending = sending
        self._exchange.resend(step.number, sending)

    async def finish(self, step: Underway) -> StepResult:
        """See a step through.

        Raises:
            StateBehind: other servers have taken the step already.
        """
        count = len(step.dealt.works)
        outcomes = await self.screening.screened(step.number, count, await step.outcomes, step.gathering)
        own, beside = outcomes[:count], outcomes[count:]

        part, accountant = step.part, self.accounting.accountant
        crossed = None if part is None else partial(part.crossed, own, accountant=accountant)
        accountant.begin_step(step.number)
        report = self.accounting.report(own, beside, step.expected, step.sending, crossed)
        return await self.ending.end(self, step, report)
