"""One synchronous step: records out, gradients in, the optimiser steps, time and energy are accounted."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from csd_emu.perfmodel.host_node import reduce_seconds
from csd_emu.perfmodel.timeline import Crossed
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.step_frames import Stepped
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Array, spec_bytes, tensor_specs
from host.core.device_time import MODELLED, WALL, gradient_seconds, micro_batch_counts
from host.core.records import PlacementRecord
from host.core.scanning import UNLIMITED, first_not_finite
from host.core.states.peer_servers import PeerServers
from host.training.accounting import Accountant, StepAccount
from host.training.contributions import AssignedWork, Reason, Refusal, ScreenedContribution
from host.training.device_conduct import Conduct
from host.training.screening import Screen
from host.training.sync.device_reports import capped_seconds, device_step, returned_reports, sample_gradients
from host.training.sync.exchange.activation_exchange import ActivationExchange
from host.training.sync.exchange.gradient_buffer import Apply, GradientBuffer
from host.training.sync.exchange.gradient_screen import GradientScreen
from host.training.sync.exchange.step_exchange import FIFO, DeviceOutcome, Outbound, StepExchange, StepWork
from host.training.sync.exchange.weight_release import Release
from host.training.sync.gradient_direction import LEAST_DEVICES, DirectionWatch, Sampler
from host.training.sync.gradient_mean import TensorContribution, combine
from host.training.sync.server_model.server_model import ServerModel, ServerModelPass
from host.training.sync.step_result import StepResult, Underway, failed_outcomes
from host.training.sync.stragglers import DeviceProgress as TimedPart
from host.training.sync.stragglers import Expected, list_late
from host.training.sync_plan import SyncPlan
from host.training.tensor_ranges import TensorRange, cut_blocks, overlapped
from host.training.trained_model import TrainedModel

ServerModelClock = Callable[[int, Sequence[PhaseSeconds]], float]
"""Returns the seconds of the host's part of a step: of so many records, given what the devices' own parts took."""


class Stepper:
    """Takes steps on the weights that it is given, in place; one instance per run.

    Attributes:
        weights: parameters and buffers by name.
        optimiser: of the parameters.
        accountant: composes time and energy.
        screen: judges what devices return.
        conduct: is told of it.
    """

    def __init__(
        self,
        model: TrainedModel,
        plan: SyncPlan,
        exchange: StepExchange,
        accountant: Accountant,
        tail: ServerModel | None = None,
        tail_clock: ServerModelClock | None = None,
        alike: bool = False,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            model: what they change; unless its batch normalisation is ``frozen``, devices send buffers, to be averaged.
            plan: how, and what steps should cost.
            exchange: reaches the devices.
            accountant: composes time and energy.
            tail: the host's part of the model, on the same weights; None if drives have the whole one.
            tail_clock: says what it takes where devices' seconds are not the wall's.
            alike: whether the devices' records are known to be alike (see `host.fleet.shards.dealt_alike`).
        """
        self.weights, self._structure, self.optimiser = model.weights, model.structure, model.optimiser
        weights, structure, batch_norm = model.weights, model.structure, plan.job.sync.batch_norm
        self._tail, self._tail_clock = tail, tail_clock
        self._barrier = model.optimiser.needs_all is not None
        # Whether a step's means, those of buffers too, are kept for a subclass to apply.
        self._keeps_all = False
        trained, buffers = structure.trained, structure.buffers
        if tail is not None:
            trained, buffers = tail.front_trained, tail.front_buffers
        self._buffers = buffers if batch_norm != "frozen" else ()
        # Statistics that a lost device was part of are in the gradients of all others; and parts of a gradient that
        # normalisation takes out of the sum over all devices point away from each other in honest ones.
        self._coupled = batch_norm == "synchronised"
        self._specs = tensor_specs({name: weights[name] for name in (*trained, *self._buffers)})
        self._sent = {name: weights[name] for name in (weights if tail is None else tail.front)}
        order = structure.order or tuple(name for name in weights if name not in structure.tied)
        self._order = tuple(name for name in order if name in self._sent)
        self._gradient_bytes = sum(spec_bytes(spec) for spec in self._specs)
        self._tail_bytes = 0 if tail is None else sum(weights[name].nbytes for name in (*tail.trained, *tail.kept))
        self._exchange, self.accountant = exchange, accountant
        self._models, self._straggler_factor = plan.expected, plan.job.sync.straggler_factor
        self._last = Release.of_all(itertools.chain.from_iterable(self._blocks().values()))
        self._tail_ready: asyncio.Event | None = None
        self.screen, self.conduct = Screen(), Conduct(lambda *_: None)
        self._sampler = Sampler({name: weights[name].size for name in trained}, seed=0)
        self._directions = DirectionWatch(alike)

    @property
    def together(self) -> PeerServers | None:
        """The other servers that take the steps too; None if there is none."""
        return None

    @property
    def may_look_ahead(self) -> bool:
        """Whether a step may begin before the one before it is over: not where a device may turn out to be late."""
        return self._straggler_factor is None

    def begin(
        self,
        number: int,
        works: Sequence[StepWork],
        learning_rate: Callable[[int], float],
        probes: Sequence[StepWork] = (),
        expected: Expected | None = None,
        sending: TransferSettings = FIFO,
    ) -> Underway:
        """Begin a step with the devices of `works`; those of `probes` compute beside it, to be watched.

        `learning_rate` returns that of a step with so many records. Whoever takes longer than its `expected` seconds
        allow is late, if they are known (see `lateness`). Of overlapping steps one may begin while the one
        before is under way: a device gets each of its weights as soon as that one has stepped it.
        """
        records = {work.session.device: len(work.records) for work in works}
        whole: dict[str, Array] = {}
        barrier, count = self._barrier, sum(records.values())
        rate = learning_rate(count) if count else 0.0  # without a record here others may have some
        blocks = self._blocks()
        release, loop = Release(itertools.chain.from_iterable(blocks.values())), asyncio.get_running_loop()

        def apply(block: TensorRange, contributions: Sequence[TensorContribution]) -> None:
            total = combine(block.tensor, contributions)
            if block.tensor in self._buffers and not self._keeps_all:
                self._part_of(block)[...] = total
            elif barrier:
                whole[block.tensor] = total.reshape(self.weights[block.tensor].shape)
                return
            else:
                self.optimiser.step_block(block, total, step.rate)
            loop.call_soon_threadsafe(let_go, block)

        def let_go(block: TensorRange) -> None:
            for each in overlapped(blocks[block.tensor], block.start, block.end):
                release.add(each)
            if crossings is not None and not late_matters and not barrier:
                self._begin_tail(step, crossings)

        late_matters = self._straggler_factor is not None and expected is not None
        gathering = self._buffer(records, apply, late_matters)
        outbound = Outbound(number, self._sent, self._order, sending, self._last)
        self._last = release
        crossings = self._crossings(number, works, late_matters, gathering.screen.refused)
        outcomes = asyncio.ensure_future(
            self._exchange.visit(outbound, works, gathering, probes, crossings, self.screen)
        )
        step = Underway(
            *(number, works, records, learning_rate, rate, expected, gathering, whole, outcomes, release, sending),
            crossings,
        )
        self._tail_ready = step.tail_ready
        return step

    def _buffer(self, records: Mapping[str, int], apply: Apply, late_matters: bool) -> GradientBuffer:
        """Return what the gradients of a step come together in."""
        limits = self.screen.limits
        # Without a history what is too large is known when all have come.
        waits = late_matters or self._keeps_all or limits == UNLIMITED
        screen = GradientScreen({name: self.weights[name] for name in self._buffers}, limits)
        return GradientBuffer(self._specs, records, apply, waits, self._block_bytes, screen)

    def resend(self, step: Underway, sending: TransferSettings) -> None:
        """Send by other settings what of an overlapping step has not left yet."""
        step.sending = sending
        self._exchange.resend(step.number, sending)

    async def finish(self, step: Underway) -> StepResult:
        """See a step through.

        What a device that is lost has sent stays in it, if anyone else returns anything. If nobody does, only tensors
        that all had sent before are stepped, none if the optimiser needs all at once, and the result has no device.
        """
        count, rate = len(step.works), step.rate
        outcomes = await self._screened(step)
        limit, late = self._late(outcomes[:count], step.expected)
        crossed = self._crossed(step.crossings, outcomes[:count], late)
        accounted = self._account(outcomes[:count], outcomes[count:], (limit, late), step.sending, crossed)
        if late:  # nothing is applied yet: such steps have a barrier
            rate = step.learning_rate(sum(records for device, records in step.records.items() if device not in late))
            step.rate = rate
        await step.gathering.finish(late)
        counts = len(failed_outcomes(outcomes[:count])) < count or (
            self.optimiser.needs_all is None and step.gathering.mixed
        )
        if step.crossings is not None and counts:
            await self._begin_tail(step, step.crossings, late)
        if step.whole and counts:
            await asyncio.to_thread(self.optimiser.step_all, step.whole, rate)
        step.tail_ready.set()
        for name, first in self._structure.tied.items():
            self.weights[name][...] = self.weights[first]
        step.release.add_all()
        mixed = step.gathering.mixed or (self._coupled and bool(failed_outcomes(outcomes[:count])))
        mixed = mixed or (
            step.crossings is not None and step.crossings.mixed and bool(returned_reports(outcomes[:count]))
        )
        result = self._result(outcomes[:count], accounted, late, mixed, rate)
        probed = failed_outcomes(outcomes[count:])
        return replace(result, failed_probes=probed, placement=self._told(crossed), not_finite=step.not_finite)

    async def _screened(self, step: Underway) -> list[DeviceOutcome]:
        """Return the outcomes of a step as far as they are believed; what is not goes into nothing from now on."""
        outcomes, where = list(await step.outcomes), f"step {step.number}"
        refused: dict[str, Refusal] = {}

        def judge() -> Collection[str]:
            parts = [self._judged(step, place, outcome, outcome.stepped) for place, outcome in enumerate(outcomes)]
            refused.update(step.gathering.screen.refused)
            refused.update(self.screen.judge([p for p in parts if p is not None and p.device not in refused]))
            step.gathering.screen.limits = self.screen.limits  # of those who were not judged
            return refused.keys() & step.records.keys()

        await step.gathering.refuse(judge)
        seen = {o.device: o for o in outcomes[: len(step.works)] if o.stepped is not None and o.device not in refused}
        if len(seen) >= LEAST_DEVICES and not self._coupled:
            refused |= self._directions.observe(
                step.number, await asyncio.to_thread(sample_gradients, self._sampler, step.gathering, seen)
            )
        for place, outcome in enumerate(outcomes):
            if (why := refused.get(outcome.device)) is not None:
                at_once = why.reason is Reason.DIRECTION  # its gradients of all these steps are in them
                error = self.conduct.refuse(outcome.work.session, why, where, at_once)
                outcomes[place] = outcome if at_once else DeviceOutcome(outcome.work, None, error)
            elif outcome.stepped is not None and place < len(step.works):
                self.conduct.accept(outcome.work.session, where, outcome.stepped.loss)
        return outcomes

    def _judged(
        self, step: Underway, place: int, outcome: DeviceOutcome, said: Stepped | None
    ) -> ScreenedContribution | None:
        if said is None:
            return None
        device, stopwatch = outcome.device, outcome.work.session.hello.clock
        clock = self.accountant.time.clock(device, stopwatch)
        scan = step.gathering.screen.scan(device) if place < len(step.works) else None
        table_seconds = self._expected_total(outcome) or None
        return ScreenedContribution(
            device, AssignedWork(len(outcome.work.records), 1), said, None, scan, clock, table_seconds
        )

    def _crossings(
        self, number: int, works: Sequence[StepWork], keep: bool, refused: dict[str, Refusal]
    ) -> ActivationExchange | None:
        if self._tail is None:
            return None
        parts = {work.session.device: work.parts for work in works}
        return ActivationExchange(self._tail, number, parts, self._tail_ready, keep, self.screen, refused)

    def _begin_tail(
        self, step: Underway, crossings: ActivationExchange, late: Collection[str] = ()
    ) -> asyncio.Task[None]:
        """Have the host's part of the model stepped, once.

        That is due as soon as a block of the drives' part is: then no drive that is there hands over anything more, and
        the step counts, whoever is lost from now on.
        """
        if step.tail_step is None:
            step.tail_step = asyncio.ensure_future(self._step_tail(step, crossings, late))
        return step.tail_step

    async def _step_tail(self, step: Underway, crossings: ActivationExchange, late: Collection[str]) -> None:
        """Step the host's part with all that went through it in time, or keep its gradient for `step_all`."""
        await crossings.settle()
        passing = await asyncio.to_thread(crossings.compute_without, late) if late else crossings.passing
        await asyncio.to_thread(self._apply_tail, step, passing)
        if self.optimiser.needs_all is None:
            step.tail_ready.set()

    def _apply_tail(self, step: Underway, passing: ServerModelPass) -> None:
        gradients = passing.gradients()
        step.not_finite = first_not_finite(gradients)
        if step.not_finite:
            return
        for name, gradient in gradients.items():
            if self.optimiser.needs_all is not None:
                step.whole[name] = gradient
            else:
                self.optimiser.step_tensor(name, gradient, step.rate)
        for name, buffer in passing.buffers().items():
            self.weights[name][...] = buffer

    @property
    def _block_bytes(self) -> int | None:
        return None if self._barrier else self.optimiser.block_bytes

    def _blocks(self) -> dict[str, list[TensorRange]]:
        return cut_blocks(self._specs, self._block_bytes)

    def _part_of(self, block: TensorRange) -> Array:
        array = self.weights[block.tensor]
        return array.reshape(-1)[block.start // array.itemsize : block.end // array.itemsize]

    def _crossed(
        self, crossings: ActivationExchange | None, outcomes: Sequence[DeviceOutcome], late: Collection[str]
    ) -> Crossed | None:
        """Return what crossed the cut, of those who returned; the host's seconds are the wall's if all others' are.

        Its modelled seconds are those of the records that were there in time.
        """
        there = [outcome for outcome in outcomes if outcome.stepped is not None]
        if crossings is None or not there:
            return None
        accountant, seconds, clock = self.accountant, crossings.passing.seconds, WALL
        clocks = {accountant.time.clock(each.device, each.work.session.hello.clock) for each in there}
        if clocks != {WALL} and self._tail_clock is not None:
            in_time = [each for each in there if each.device not in late]
            fronts, clock = [accountant.device_seconds(part) for part in returned_reports(in_time)], MODELLED
            seconds = self._tail_clock(sum(len(each.work.records) for each in in_time), fronts)
        remote = [each for each in there if each.device != HOST]
        up, down = ({each.device: getattr(each, way) for each in remote} for way in ("up_bytes", "down_bytes"))
        return Crossed(up, down, seconds, clock, reduce_seconds(self._tail_bytes, 0))

    def _told(self, crossed: Crossed | None) -> PlacementRecord | None:
        if crossed is None or self._tail is None:
            return None
        return PlacementRecord(
            layer=self._tail.point.layer,
            layers=self._tail.layers,
            state_bytes=self._tail.state_bytes,
            up_bytes=sum(crossed.up_bytes.values()),
            down_bytes=sum(crossed.down_bytes.values()),
            tail_seconds=crossed.tail_seconds,
            clock=crossed.clock,
        )

    def _late(self, outcomes: Sequence[DeviceOutcome], expected: Expected | None) -> tuple[float, list[str]]:
        """Return after how many seconds of computing devices were given up, and which."""
        if not expected:
            return 0.0, []
        parts = [
            TimedPart(part.device, part.batch_size, self.accountant.compute_seconds(part), expected[part.device])
            for part in returned_reports(outcomes)
        ]
        return list_late(parts, self._straggler_factor)

    def _account(
        self,
        outcomes: Sequence[DeviceOutcome],
        probes: Sequence[DeviceOutcome],
        judged: tuple[float, Collection[str]],
        sending: TransferSettings,
        crossed: Crossed | None,
    ) -> StepAccount:
        returned, beside, accountant = returned_reports(outcomes), returned_reports(probes), self.accountant
        host_seconds = reduce_seconds(self._gradient_bytes, len(returned)) if returned else 0.0
        limit, late = judged
        if not late:
            return accountant.account(returned, None, host_seconds, beside, sending=sending, crossed=crossed)
        # The exchange of what is not waited for would have followed: the step is charged as if it had.
        if crossed is not None:  # and each of its passes up to the same share
            own = {part.device: accountant.device_seconds(part) for part in returned}
            ended = {device: capped_seconds(seconds, limit) for device, seconds in own.items()}
            return accountant.account(returned, None, host_seconds, beside, late, crossed=crossed, ended=ended)
        capped = {part.device: PhaseSeconds(forward=min(limit, accountant.compute_seconds(part))) for part in returned}
        return accountant.account(returned, accountant.predict_seconds(returned, capped), host_seconds, beside, late)

    def _result(
        self, outcomes: Sequence[DeviceOutcome], accounted: StepAccount, late: list[str], mixed: bool, rate: float
    ) -> StepResult:
        in_time = [outcome for outcome in outcomes if outcome.stepped is not None and outcome.device not in late]
        parts = {part.device: part for part in accounted.devices}
        total = sum(len(outcome.work.records) for outcome in in_time)
        devices = [device_step(o, parts[o.device], self._expected_total(o), total) for o in in_time]
        losses = [(outcome.stepped.loss, len(outcome.work.records)) for outcome in in_time if outcome.stepped]
        loss = sum(value * count for value, count in losses) / total if total else math.nan
        return StepResult(accounted, loss, devices, late, failed_outcomes(outcomes), mixed, rate)

    def _expected_total(self, outcome: DeviceOutcome) -> float:
        """Return what the device's table says of its part, undisturbed; 0 without one."""
        if outcome.device not in self._models:
            return 0.0
        batches = micro_batch_counts(len(outcome.work.records), outcome.work.micro_batch)
        return gradient_seconds(self._models[outcome.device], batches).total
