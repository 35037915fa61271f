"""One synchronous step: records out, gradients in, the optimiser steps, time and energy are accounted."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from csd_emu.cut_timeline import Crossed
from csd_emu.host_node import reduce_seconds
from csd_emu.timeline import HOST
from firmware_agent.errors import CsdError
from firmware_agent.exchange import Array, spec_bytes, tensor_specs
from firmware_agent.send_queue import Sending
from firmware_agent.wire import PhaseSeconds, Stepped, Trained
from host.accounting import Accountant, Accounted, Returned
from host.conduct import Conduct
from host.device_time import MODELLED, WALL, StepModel, gradient_seconds, micro_batch_counts
from host.evaluation import Structure
from host.records import DeviceStep, PlacementRecord, ServersRecord
from host.scanning import UNLIMITED
from host.screening import Dealt, Part, Reason, Refusal, Screen
from host.sync.blocks import Block, cut_blocks, overlapped
from host.sync.crossing import Crossings
from host.sync.direction import LEAST_DEVICES, DirectionWatch, Sampler, Seen
from host.sync.exchange import FIFO, Outbound, Outcome, StepExchange, Work
from host.sync.gathering import Gathering
from host.sync.lateness import Expected, list_late
from host.sync.lateness import Part as TimedPart
from host.sync.optimiser import HostOptimiser
from host.sync.reduction import Contribution, combine
from host.sync.release import Release
from host.sync.screened import GradientScreen
from host.sync.tail import Tail, TailPass
from host.sync.together import DevicePart
from host.tuning.base import StepCost

TailClock = Callable[[int, Sequence[PhaseSeconds]], float]
"""Returns the seconds of the host's part of a step: of so many records, given what the devices' own parts took."""


@dataclass(frozen=True)
class StepResult:
    """What came of a step.

    Attributes:
        accounted: time and energy; late devices are marked as stragglers.
        loss: mean over the records in the gradient.
        devices: whose gradients went into it.
        late: who was not waited for.
        failed: who returned nothing, and why.
        mixed: whether slices of one of these are in part of the gradient.
        learning_rate: that the optimiser stepped with.
        failed_probes: who returned nothing of a probe, which nobody waited for, and why.
        placement: what the host had of the model; None if nothing is moved.
        servers: what other servers had to do with it; None if there is none.
    """

    accounted: Accounted
    loss: float
    devices: list[DeviceStep]
    late: list[str]
    failed: dict[str, CsdError]
    mixed: bool
    learning_rate: float
    failed_probes: Mapping[str, CsdError] = field(default_factory=dict)
    placement: PlacementRecord | None = None
    servers: ServersRecord | None = None

    @property
    def took_part(self) -> list[str]:
        """Whose gradients went into it, on all servers."""
        return [part.device for part in self.devices]

    @property
    def observed(self) -> list[DevicePart]:
        """What each device computed, whether or not it counts, on all servers."""
        parts = self.accounted.devices
        return [DevicePart(part.device, part.samples, part.device_seconds.total) for part in parts]

    @property
    def cost(self) -> StepCost:
        """What the step cost all that took part, for whoever chooses its devices."""
        return StepCost(
            records={part.device: part.batch_size for part in self.devices},
            compute_seconds={part.device: part.compute_seconds for part in self.devices},
            array_seconds=self.accounted.array_seconds,
            joules=node_joules(self.accounted),
            missing=frozenset((*self.late, *self.failed)),
        )


@dataclass
class Underway:
    """A step that has begun.

    Attributes:
        number: its number in the run.
        works: one per device that takes part, in participant order.
        records: device -> how many it computes.
        learning_rate: that of a step with so many records.
        rate: that of this one, unless devices are late.
        expected: device -> seconds that its part should take.
        gathering: its gradients.
        whole: the gradient, where the optimiser needs all of it.
        outcomes: of works, then of probes.
        release: which of the weights it has stepped.
        sending: its settings.
        crossings: what crosses the cut of the model; None if it is whole.
        tail_ready: set when the host's part of the model has what this step makes of it.
        tail_step: what steps that part, once it has begun.
    """

    number: int
    works: Sequence[Work]
    records: Mapping[str, int]
    learning_rate: Callable[[int], float]
    rate: float
    expected: Expected | None
    gathering: Gathering
    whole: dict[str, Array]
    outcomes: asyncio.Future[list[Outcome]]
    release: Release
    sending: Sending = FIFO
    crossings: Crossings | None = None
    tail_ready: asyncio.Event = field(default_factory=asyncio.Event)
    tail_step: asyncio.Task[None] | None = None


class Stepper:
    """Takes steps on the weights that it is given, in place; one instance per run.

    Attributes:
        screen: judges what devices return.
        conduct: is told of it.
    """

    def __init__(
        self,
        weights: dict[str, Array],
        structure: Structure,
        batch_norm: str,
        optimiser: HostOptimiser,
        exchange: StepExchange,
        accountant: Accountant,
        models: Mapping[str, StepModel],
        patience: float | None,
        tail: Tail | None = None,
        tail_clock: TailClock | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            weights: parameters and buffers by name; trained parameters share their memory with the optimiser.
            structure: which of them are what.
            batch_norm: see `host.sync.sections.SyncSection`; unless ``frozen``, devices send buffers, to be averaged.
            optimiser: of the parameters.
            exchange: reaches the devices.
            accountant: composes time and energy.
            models: device -> what its steps should cost, for those with a table.
            patience: see `host.sync.sections.SyncSection`.
            tail: the host's part of the model, on the same weights; None if drives have the whole one.
            tail_clock: says what it takes where devices' seconds are not the wall's.
        """
        self.weights, self._structure, self._optimiser = weights, structure, optimiser
        self._tail, self._tail_clock = tail, tail_clock
        self._barrier = optimiser.needs_all is not None
        # Whether a step's means, those of buffers too, are kept for a subclass to apply.
        self._keeps_all = False
        trained, buffers = structure.trained, structure.buffers
        if tail is not None:
            trained, buffers = tail.front_trained, tail.front_buffers
        self._buffers = buffers if batch_norm != "frozen" else ()
        # Statistics that a lost device was part of are in the gradients of all others.
        self._coupled = batch_norm == "synchronised"
        self._specs = tensor_specs({name: weights[name] for name in (*trained, *self._buffers)})
        self._sent = {name: weights[name] for name in (weights if tail is None else tail.front)}
        order = structure.order or tuple(name for name in weights if name not in structure.tied)
        self._order = tuple(name for name in order if name in self._sent)
        self._gradient_bytes = sum(spec_bytes(spec) for spec in self._specs)
        self._tail_bytes = 0 if tail is None else sum(weights[name].nbytes for name in (*tail.trained, *tail.kept))
        self._exchange, self._accountant, self._models, self._patience = exchange, accountant, models, patience
        self._last = Release.of_all(itertools.chain.from_iterable(self._blocks().values()))
        self._tail_ready: asyncio.Event | None = None
        self.screen, self.conduct = Screen(), Conduct(lambda *_: None)
        self._sampler = Sampler({name: weights[name].size for name in trained}, seed=0)
        self._directions = DirectionWatch()

    @property
    def may_look_ahead(self) -> bool:
        """Whether a step may begin before the one before it is over: not where a device may turn out to be late."""
        return self._patience is None

    async def step(
        self,
        number: int,
        works: Sequence[Work],
        learning_rate: Callable[[int], float],
        probes: Sequence[Work] = (),
        expected: Expected | None = None,
        sending: Sending = FIFO,
    ) -> StepResult:
        """Begin a step and see it through."""
        return await self.finish(self.begin(number, works, learning_rate, probes, expected, sending))

    def begin(
        self,
        number: int,
        works: Sequence[Work],
        learning_rate: Callable[[int], float],
        probes: Sequence[Work] = (),
        expected: Expected | None = None,
        sending: Sending = FIFO,
    ) -> Underway:
        """Begin a step with the devices of `works`; those of `probes` compute beside it, to be watched.

        `learning_rate` returns that of a step with so many records. Whoever takes longer than its `expected` seconds
        allow is late, if they are known (see `host.sync.lateness`). Of overlapping steps one may begin while the one
        before is under way: a device gets each of its weights as soon as that one has stepped it.
        """
        records = {work.session.device: len(work.records) for work in works}
        whole: dict[str, Array] = {}
        barrier, count = self._barrier, sum(records.values())
        rate = learning_rate(count) if count else 0.0  # without a record here others may have some
        blocks = self._blocks()
        before, self._last = self._last, Release(itertools.chain.from_iterable(blocks.values()))
        release, loop = self._last, asyncio.get_running_loop()

        def apply(block: Block, contributions: Sequence[Contribution]) -> None:
            total = combine(block.tensor, contributions)
            if block.tensor in self._buffers and not self._keeps_all:
                self._part_of(block)[...] = total
            elif barrier:
                whole[block.tensor] = total.reshape(self.weights[block.tensor].shape)
                return
            else:
                self._optimiser.step_block(block, total, step.rate)
            loop.call_soon_threadsafe(let_go, block)

        def let_go(block: Block) -> None:
            for each in overlapped(blocks[block.tensor], block.start, block.end):
                release.add(each)
            if crossings is not None and not late_matters and not barrier:
                self._begin_tail(step, crossings)

        late_matters = self._patience is not None and expected is not None
        # Without a history what is too large is known when all have come.
        limits = self.screen.limits
        waits = late_matters or self._keeps_all or limits == UNLIMITED
        screen = GradientScreen({name: self.weights[name] for name in self._buffers}, limits)
        gathering = Gathering(self._specs, records, apply, waits, self._block_bytes, screen)
        outbound = Outbound(number, self._sent, self._order, sending, before)
        crossings = self._crossings(number, works, late_matters)
        outcomes = asyncio.ensure_future(self._exchange.visit(outbound, works, gathering, probes, crossings))
        step = Underway(
            *(number, works, records, learning_rate, rate, expected, gathering, whole, outcomes, release, sending),
            crossings,
        )
        self._tail_ready = step.tail_ready
        return step

    def resend(self, step: Underway, sending: Sending) -> None:
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
            self._optimiser.needs_all is None and step.gathering.mixed
        )
        if step.crossings is not None and counts:
            await self._begin_tail(step, step.crossings, late)
        if step.whole and counts:
            await asyncio.to_thread(self._optimiser.step_all, step.whole, rate)
        step.tail_ready.set()
        for name, first in self._structure.tied.items():
            self.weights[name][...] = self.weights[first]
        step.release.add_all()
        mixed = step.gathering.mixed or (self._coupled and bool(failed_outcomes(outcomes[:count])))
        mixed = mixed or (step.crossings is not None and step.crossings.mixed and bool(_returned(outcomes[:count])))
        result = self._result(outcomes[:count], accounted, late, mixed, rate)
        return replace(result, failed_probes=failed_outcomes(outcomes[count:]), placement=self._told(crossed))

    async def _screened(self, step: Underway) -> list[Outcome]:
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
        if len(seen) >= LEAST_DEVICES:
            refused |= self._directions.observe(await asyncio.to_thread(self._sampled, step.gathering, seen))
        for place, outcome in enumerate(outcomes):
            if (why := refused.get(outcome.device)) is not None:
                at_once = why.reason is Reason.DIRECTION  # its gradients of all these steps are in them
                error = self.conduct.refuse(outcome.work.session, why, where, at_once)
                outcomes[place] = outcome if at_once else Outcome(outcome.work, None, error)
            elif outcome.stepped is not None and place < len(step.works):
                self.conduct.accept(outcome.work.session, where, outcome.stepped.loss)
        return outcomes

    def _sampled(self, gathering: Gathering, outcomes: Mapping[str, Outcome]) -> dict[str, Seen]:
        gradients = {device: gathering.gradients(device) for device in outcomes}
        return {
            device: Seen(self._sampler.take(gradients[device]), outcome.stepped.samples, outcome.stepped.loss)
            for device, outcome in outcomes.items()
            if outcome.stepped is not None and gradients[device]
        }

    def _judged(self, step: Underway, place: int, outcome: Outcome, said: Stepped | None) -> Part | None:
        if said is None:
            return None
        device, stopwatch = outcome.device, outcome.work.session.hello.clock
        clock = self._accountant.time.clock(device, stopwatch)
        scan = step.gathering.screen.scan(device) if place < len(step.works) else None
        table_seconds = self._expected_total(outcome) or None
        return Part(device, Dealt(len(outcome.work.records), 1), said, None, scan, clock, table_seconds)

    def _crossings(self, number: int, works: Sequence[Work], keep: bool) -> Crossings | None:
        parts = {work.session.device: work.parts for work in works}
        return None if self._tail is None else Crossings(self._tail, number, parts, self._tail_ready, keep)

    def _begin_tail(self, step: Underway, crossings: Crossings, late: Collection[str] = ()) -> asyncio.Task[None]:
        """Have the host's part of the model stepped, once.

        That is due as soon as a block of the drives' part is: then no drive that is there hands over anything more, and
        the step counts, whoever is lost from now on.
        """
        if step.tail_step is None:
            step.tail_step = asyncio.ensure_future(self._step_tail(step, crossings, late))
        return step.tail_step

    async def _step_tail(self, step: Underway, crossings: Crossings, late: Collection[str]) -> None:
        """Step the host's part with all that went through it in time, or keep its gradient for `step_all`."""
        await crossings.settle()
        passing = await asyncio.to_thread(crossings.compute_without, late) if late else crossings.passing
        await asyncio.to_thread(self._apply_tail, step, passing)
        if self._optimiser.needs_all is None:
            step.tail_ready.set()

    def _apply_tail(self, step: Underway, passing: TailPass) -> None:
        for name, gradient in passing.gradients().items():
            if self._optimiser.needs_all is not None:
                step.whole[name] = gradient
            else:
                self._optimiser.step_tensor(name, gradient, step.rate)
        for name, buffer in passing.buffers().items():
            self.weights[name][...] = buffer

    @property
    def _block_bytes(self) -> int | None:
        return None if self._barrier else self._optimiser.block_bytes

    def _blocks(self) -> dict[str, list[Block]]:
        return cut_blocks(self._specs, self._block_bytes)

    def _part_of(self, block: Block) -> Array:
        array = self.weights[block.tensor]
        return array.reshape(-1)[block.start // array.itemsize : block.end // array.itemsize]

    def _crossed(
        self, crossings: Crossings | None, outcomes: Sequence[Outcome], late: Collection[str]
    ) -> Crossed | None:
        """Return what crossed the cut, of those who returned; the host's seconds are the wall's if all others' are.

        Its modelled seconds are those of the records that were there in time.
        """
        there = [outcome for outcome in outcomes if outcome.stepped is not None]
        if crossings is None or not there:
            return None
        accountant, seconds, clock = self._accountant, crossings.passing.seconds, WALL
        clocks = {accountant.time.clock(each.device, each.work.session.hello.clock) for each in there}
        if clocks != {WALL} and self._tail_clock is not None:
            in_time = [each for each in there if each.device not in late]
            fronts, clock = [accountant.device_seconds(part) for part in _returned(in_time)], MODELLED
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

    def _late(self, outcomes: Sequence[Outcome], expected: Expected | None) -> tuple[float, list[str]]:
        """Return after how many seconds of computing devices were given up, and which."""
        if not expected:
            return 0.0, []
        parts = [
            TimedPart(part.device, part.batch_size, self._accountant.compute_seconds(part), expected[part.device])
            for part in _returned(outcomes)
        ]
        return list_late(parts, self._patience)

    def _account(
        self,
        outcomes: Sequence[Outcome],
        probes: Sequence[Outcome],
        judged: tuple[float, Collection[str]],
        sending: Sending,
        crossed: Crossed | None,
    ) -> Accounted:
        returned, beside, accountant = _returned(outcomes), _returned(probes), self._accountant
        host_seconds = reduce_seconds(self._gradient_bytes, len(returned)) if returned else 0.0
        limit, late = judged
        if not late:
            return accountant.account(returned, None, host_seconds, beside, sending=sending, crossed=crossed)
        # The exchange of what is not waited for would have followed: the step is charged as if it had.
        if crossed is not None:  # and each of its passes up to the same share
            own = {part.device: accountant.device_seconds(part) for part in returned}
            ended = {device: _capped(seconds, limit) for device, seconds in own.items()}
            return accountant.account(returned, None, host_seconds, beside, late, crossed=crossed, ended=ended)
        capped = {part.device: PhaseSeconds(forward=min(limit, accountant.compute_seconds(part))) for part in returned}
        return accountant.account(returned, accountant.predict_seconds(returned, capped), host_seconds, beside, late)

    def _expected(self, device: str, batches: Mapping[int, int]) -> PhaseSeconds:
        """Return what a device's table says of a step, undisturbed."""
        return gradient_seconds(self._models[device], batches)

    def _result(
        self, outcomes: Sequence[Outcome], accounted: Accounted, late: list[str], mixed: bool, rate: float
    ) -> StepResult:
        in_time = [outcome for outcome in outcomes if outcome.stepped is not None and outcome.device not in late]
        parts = {part.device: part for part in accounted.devices}
        total = sum(len(outcome.work.records) for outcome in in_time)
        devices = [
            DeviceStep(
                device=outcome.device,
                batch_size=len(outcome.work.records),
                compute_seconds=parts[outcome.device].device_seconds.total,
                expected_seconds=self._expected_total(outcome),
                weight=len(outcome.work.records) / total,
            )
            for outcome in in_time
        ]
        losses = [(outcome.stepped.loss, len(outcome.work.records)) for outcome in in_time if outcome.stepped]
        loss = sum(value * count for value, count in losses) / total if total else math.nan
        return StepResult(accounted, loss, devices, late, failed_outcomes(outcomes), mixed, rate)

    def _expected_total(self, outcome: Outcome) -> float:
        if outcome.device not in self._models:
            return 0.0
        work = outcome.work
        return self._expected(outcome.device, micro_batch_counts(len(work.records), work.micro_batch)).total


def node_joules(accounted: Accounted) -> dict[str, float]:
    """Return what each node drew in a step, in joules."""
    joules = {part.device: sum(part.energy_joules.values()) for part in accounted.devices}
    for node, others in accounted.energy_joules.items():
        joules[node] = joules.get(node, 0.0) + sum(others.values())
    return joules


def _capped(seconds: PhaseSeconds, limit: float) -> PhaseSeconds:
    """Return seconds of no more than `limit` in all, shared out over the phases as they are."""
    share = min(1.0, limit / seconds.total) if seconds.total else 1.0
    return PhaseSeconds(*(share * getattr(seconds, phase) for phase in PhaseSeconds.__struct_fields__))


def failed_outcomes(outcomes: Sequence[Outcome]) -> dict[str, CsdError]:
    """Return who returned nothing, and why."""
    return {outcome.device: outcome.error for outcome in outcomes if outcome.error is not None}


def _returned(outcomes: Sequence[Outcome]) -> list[Returned]:
    return [_as_returned(outcome, outcome.stepped) for outcome in outcomes if outcome.stepped is not None]


def _as_returned(outcome: Outcome, stepped: Stepped) -> Returned:
    return Returned(
        device=outcome.device,
        hello_clock=outcome.work.session.hello.clock,
        trained=Trained(
            *(stepped.step, stepped.samples, 1, stepped.loss, stepped.seconds, stepped.read_bytes),
            stepped.peak_memory_bytes,
            stepped.metered,
        ),
        epochs=1,
        batch_size=stepped.samples,
        sent_bytes=0 if outcome.device == HOST else outcome.sent_bytes,
        received_bytes=stepped.read_bytes if outcome.device == HOST else outcome.received_bytes,
        micro_batch=outcome.work.micro_batch,
    )
