"""Who computes what in the steps of a run: batches as the tuner decides, records as the epoch deals them out."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import ConfigurationError
from host.core.partition import Indices
from host.core.records import EventKind, OnEvent
from host.core.states.peer_servers import DevicePart
from host.core.states.training_state import check_in_place
from host.core.tuning.batch_tuner import Batches, BatchTuner, DeviceSelector, Floats, Retune
from host.fleet.device_session import DeviceSession
from host.policies.batching.device_speeds import DeviceClass
from host.training.sampler import OUTSTANDING, QueueState
from host.training.screening import believed_seconds
from host.training.sync.exchange.step_extension import StepWork
from host.training.sync.round_totals import RoundTotals
from host.training.sync.step_result import StepResult
from host.training.sync_plan import SyncPlan

# A device that was late so often in a row is waited for.
_MOST_LATE_STEPS = 3


class ExpectedSeconds:
    """What is expected of each device, and what was observed, for batches of other sizes too.

    Attributes:
        late_steps: how many steps in a row each device was late.
    """

    def __init__(self, nodes: Sequence[str], classes: Mapping[str, DeviceClass]) -> None:
        """Begin with nobody late; `classes` have the tables of the nodes that have one."""
        self._nodes, self._classes = list(nodes), classes
        self.late_steps: Counter[str] = Counter()

    def count_late(self, devices: Collection[str], late: Collection[str]) -> None:
        """Note who of the `devices` of a step was late."""
        for device in devices:
            self.late_steps[device] = self.late_steps[device] + 1 if device in late else 0

    def of_step(self, records: Mapping[str, int], slowdowns: Floats) -> dict[str, float] | None:
        """Return what each device's part of a step should take; None if one has no table.

        One that was late several steps in a row is waited for, whatever it takes: nobody else has its private records.

        Args:
            records: device -> how many it computes.
            slowdowns: (nodes,) what their tables' seconds are multiplied by.
        """
        if any(device not in self._classes for device in records):
            return None
        slow = dict(zip(self._nodes, slowdowns, strict=True))
        return {
            device: math.inf
            if self.late_steps[device] >= _MOST_LATE_STEPS
            else float(slow[device]) * self._table_seconds(device, count)
            for device, count in records.items()
        }

    def observed(self, parts: Sequence[DevicePart], batches: Batches) -> Floats:
        """Return (nodes,) seconds that each would have taken with its whole batch: an epoch's last step is smaller.

        Args:
            parts: what devices computed in a step.
            batches: (nodes,) records of a whole batch.
        """
        seconds, expected = np.full((2, len(self._nodes)), np.nan)
        for part in parts:
            node = self._nodes.index(part.device)
            whole = int(batches[node]) or 1  # of a parked device one record is expected
            scale = 1.0
            if whole != part.records and part.device in self._classes:
                scale = self._table_seconds(part.device, whole) / self._table_seconds(part.device, part.records)
            seconds[node] = part.compute_seconds * scale
            if part.device in self._classes:
                expected[node] = self._table_seconds(part.device, whole)
        return believed_seconds(seconds, expected)

    def _table_seconds(self, device: str, records: int) -> float:
        speed = self._classes[device].speed
        return speed.seconds(min(records, speed.largest_batch))


@dataclass(frozen=True)
class StepAssignment:
    """What a step was dealt.

    Attributes:
        works: each device's part, of those that are reached from here.
        records: node -> its part of the epoch's records.
        number: of the deal.
        comparable: whether its seconds can be held against those of other steps: not an epoch's last one's, which is
            smaller, if it has more, nor those of a trial of devices.
    """

    works: list[StepWork]
    records: Mapping[str, Indices]
    number: int
    comparable: bool = True

    @property
    def size(self) -> int:
        """Records of the step, those of other servers' devices too."""
        return sum(map(len, self.records.values()))


class RecordSampler:
    """Deals out the records of one run; nodes are numbered as the plan's.

    Attributes:
        epoch_open: whether records of the present epoch are dealt already.
    """

    def __init__(self, plan: SyncPlan, lone_record_fails: bool, outstanding: int = OUTSTANDING) -> None:
        """Begin with the first epoch of `plan`.

        Args:
            plan: makes the queue of records.
            lone_record_fails: whether a device has to have two records or none, for it normalises its own batch.
            outstanding: so many steps, the last ones dealt, can be put back.
        """
        self._plan, self._nodes, self._outstanding = plan, list(plan.nodes), outstanding
        self._queue, self._lone_record_fails = plan.make_queue(None, outstanding), lone_record_fails
        self.epoch_open = False

    def batches(self, here: Collection[int], wanted: Batches) -> Batches:
        """Return the records per step of each node, 0 for one that does not take part.

        When all others are through with an epoch, parked devices go through their private records, which nobody else
        has, with the batches of the plan.

        Args:
            here: numbers of the nodes that are there.
            wanted: (nodes,) the tuner's batches; 0 parks a device.
        """
        present = np.isin(np.arange(len(self._nodes)), list(here))
        active: Batches = np.where(present, wanted, 0)
        parked = present & (active == 0) & (np.array(self._queue.private_left) > 0)
        if self.epoch_open and parked.any() and not self.has_more(active):
            return np.where(parked, np.array(self._plan.batches), 0)
        return active

    def has_more(self, batches: Batches) -> bool:
        """Return whether the present epoch has records for nodes with these batches."""
        return self._queue.left(batches.tolist()) > 0

    def steps_left(self, batches: Batches, epochs: int) -> int:
        """Return the steps of the rest of this epoch, and of so many more."""
        return self._queue.steps_left(batches.tolist()) + epochs * self._plan.epoch_steps(batches.tolist())

    def deal(self, sessions: Mapping[str, DeviceSession], batches: Batches) -> StepAssignment:
        """Return each device's part of the next step; those without a session here are other servers'."""
        deal = self._queue.next_step(batches.tolist())
        records = dict(zip(self._nodes, deal.records, strict=True))
        works = [
            self._work(sessions[node], part, deal.epoch)
            for node, part in records.items()
            if len(part) and node in sessions
        ]
        last = self.epoch_open and not self.has_more(batches)
        comparable = not last or list(map(len, deal.records)) == batches.tolist()
        return StepAssignment(works, records, deal.number, comparable)

    def probes(self, sessions: Mapping[str, DeviceSession], counts: Batches, dealt: StepAssignment) -> list[StepWork]:
        """Return what parked devices compute beside the step: records from the beginning of their shards.

        Args:
            sessions: of the devices that are there.
            counts: (nodes,) records of each, 0 for none.
            dealt: the step.
        """
        return [
            self._work(sessions[node], np.arange(min(int(count), size)))
            for node, count, size in zip(self._nodes, counts, self._plan.sizes, strict=True)
            if count and size and node in sessions and not len(dealt.records[node])
        ]

    def put_back(self, dealt: StepAssignment, used: Collection[str]) -> None:
        """Take back the records of those whose gradients did not go into the step, one of the last ones."""
        for number, node in enumerate(self._nodes):
            if len(dealt.records[node]) and node not in used:
                self._queue.put_back(number, dealt.records[node], dealt.number)

    def state(self) -> dict[str, Any]:
        """Return where the epoch stands, as JSON takes it."""
        where = {"epoch_open": self.epoch_open, "queue": msgspec.to_builtins(self._queue.state)}
        return where | ({"in_place": dict(self._plan.in_place)} if self._plan.in_place else {})

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`.

        Raises:
            KeyError, ValueError, msgspec.ValidationError: it is none.
            CheckpointError: a drive has other records in place than then.
        """
        check_in_place(self._plan.in_place, state)
        self.epoch_open = bool(state["epoch_open"])
        self._queue = self._plan.make_queue(msgspec.convert(state["queue"], QueueState), self._outstanding)

    def _work(self, session: DeviceSession, records: Indices, epoch: int = 1) -> StepWork:
        node, places = session.device, self._fill_up(session.device, records).astype(np.uint32)
        own = epoch if node in self._plan.in_place else None
        return StepWork(session, places, self._plan.micro_batch(node), epoch=own)

    def _fill_up(self, node: str, records: Indices) -> Indices:
        """Return the records, a lone one with another of the shard: one alone has no variance to normalise with."""
        size = self._plan.sizes[self._nodes.index(node)]
        if not self._lone_record_fails or len(records) != 1 or size < 2:
            return records
        return np.append(records, (records[0] + 1) % size)


T = TypeVar("T")


class StepBatches:
    """The batches of one run, step after step.

    Attributes:
        tuner: decides on them.
        sampler: deals the records out.
        expected: what devices' parts should take.
        here: numbers of the nodes that take part.
        first_records: of the run's first step; 0 before it.
    """

    def __init__(self, plan: SyncPlan, tuner: BatchTuner, sampler: RecordSampler, on_event: OnEvent) -> None:
        """Begin with all nodes of `plan`; `on_event` is told of new batches."""
        self.tuner, self.sampler = tuner, sampler
        self.expected = ExpectedSeconds(plan.nodes, plan.classes)
        self.here, self.first_records = set(range(len(plan.nodes))), 0
        self._job, self._nodes, self._on_event = plan.job, list(plan.nodes), on_event
        self._schedule = plan.schedule
        # Of the tuner that was taken over from.
        self._before: Batches | None = None

    def state(self) -> dict[str, Any]:
        """Return where they stand, the epoch's records included, as JSON takes it."""
        return {
            "here": sorted(self.here),
            "first_records": self.first_records,
            "late_steps": dict(self.expected.late_steps),
            "tuner": self.tuner.state(),
            **self.sampler.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`.

        Raises:
            KeyError, TypeError, ValueError, msgspec.ValidationError: it is none.
        """
        self.here, self.first_records, self._before = set(state["here"]), int(state["first_records"]), None
        self.expected.late_steps = Counter(state["late_steps"])
        self.tuner.load_state(state["tuner"])
        self.sampler.load_state(state)

    def take_over(self, other: StepBatches) -> None:
        """Deal on where `other` stands; who is here, and the batches, are found out anew."""
        self.first_records, self.expected.late_steps = other.first_records, other.expected.late_steps
        self._before = other.tuner.batches.copy()
        self.sampler.load_state(other.sampler.state())

    @property
    def selector(self) -> DeviceSelector | None:
        """The tuner, if it chooses devices."""
        return self.tuner if isinstance(self.tuner, DeviceSelector) else None

    @property
    def is_deciding(self) -> bool:
        """Whether who trains is being decided: batches are a trial's, and what steps cost is compared."""
        return self.selector is not None and self.selector.is_deciding

    def current(self) -> Batches:
        """Return the records per step of each node as they are now, 0 for one that does not take part."""
        batches = self.tuner.batches  # asked for first: one that plans begins with that, and may decide at once
        resting = () if self.selector is None else self.selector.resting
        return self.sampler.batches(self.here.difference(resting), batches)

    @property
    def has_more(self) -> bool:
        """Whether the epoch has records for these."""
        return self.sampler.has_more(self.current())

    async def begin(self, step: int, ledger: RoundTotals) -> None:
        """Have a tuner that chooses devices think about its first step; write down how one that took over begins."""
        if self.selector is not None and self.selector.is_computing:
            await self.consult(self.selector.begin)
        if (before := self._before) is not None:
            self._before = None
            retune = Retune(self.tuner.batches, (), self.tuner.slowdowns, "begun anew with another cut", 0.0)
            self._announce(step, retune, before, ledger)

    async def admit(self, number: int, present: Collection[str], ledger: RoundTotals) -> None:
        """Tell the tuner who has left and who is back since the last step."""
        here = {self._nodes.index(node) for node in present}
        changes = [(self.tuner.leave, node) for node in sorted(self.here - here)]
        changes += [(self.tuner.join, node) for node in sorted(here - self.here)]
        if not changes:
            return
        before = self.tuner.batches.copy()
        if self.selector is not None:
            self.selector.meet(here)
        for change, node in changes:
            retune = await self.consult(change, node)
            self._announce(number, retune, before, ledger)
            before = retune.batches.copy()
        self.here = here

    async def observe(
        self, number: int, result: StepResult, steps_left: int, in_force: int, ledger: RoundTotals
    ) -> Retune | None:
        """Show the tuner a step, and return what it decides, which all devices have from step `in_force` on.

        Args:
            number: of the step.
            result: what came of it.
            steps_left: in the run, if batches stay as they are.
            in_force: see above.
            ledger: of the round.
        """
        before = self.tuner.batches.copy()
        retune = await self.consult(
            self.tuner.observe, number, self.expected.observed(result.observed, before), steps_left
        )
        if retune is not None:
            self._announce(in_force, retune, before, ledger)
        return retune

    def watch(self, result: StepResult, noise_records: float | None = None) -> None:
        """Show a tuner that chooses devices what a step cost, and the gradient noise scale."""
        if self.selector is not None:
            self.selector.watch(replace(result.cost, noise_records=noise_records))

    def rate_of(self, dealt: StepAssignment, number: int) -> Callable[[int], float]:
        """Return what says the learning rate of step `number` by the records in its gradient."""
        self.first_records = self.first_records or dealt.size
        factor = 1.0 if self._schedule is None else self._schedule.factor(number)
        rule, rate = self._job.sync.learning_rate_rule, self._job.learning_rate * factor
        return lambda records: scale_learning_rate(rule, rate, records, self.first_records)

    def _announce(self, step: int, retune: Retune, before: Batches, ledger: RoundTotals) -> None:
        """Write down new batches, which all devices have from `step` on."""
        if changed := ledger.add_retune(step, self._nodes, before, retune):
            self._on_event(HOST, EventKind.RETUNED, f"from step {step}: {', '.join(changed)}: {retune.reason}")

    async def consult(self, call: Callable[..., T], *arguments: object, always: bool = False) -> T:
        """Return what a call of the tuner does; one that chooses devices thinks beside the event loop.

        Its decisions take too long for that: sessions' heartbeats continue meanwhile.
        """
        if self.selector is None or not (always or self.selector.is_computing):
            return call(*arguments)
        with self.selector.telling_later():
            return await asyncio.to_thread(call, *arguments)


def scale_learning_rate(
    rule: Literal["constant", "linear", "sqrt"], learning_rate: float, records: int, first_records: int
) -> float:
    """Return the learning rate for a global batch of `records`, when `learning_rate` is that of `first_records`.

    ``linear`` keeps what an epoch moves the weights by (Goyal et al. 2017, arXiv:1706.02677, section 2.1), ``sqrt``
    the variance of a step (Krizhevsky 2014, arXiv:1404.5997, section 3.3).

    Raises:
        ConfigurationError: a batch has no record.
    """
    if records < 1 or first_records < 1:
        raise ConfigurationError(f"a learning rate for {records} records after {first_records}: both must be positive")
    ratio = records / first_records
    return learning_rate * {"constant": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]
