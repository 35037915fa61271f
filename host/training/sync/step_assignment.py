"""Records of each step by device: an epoch's are dealt out step after step, and what did not count comes again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from host.core.datasets import Indices
from host.core.tuning.batch_tuner import Batches
from host.fleet.device_session import DeviceSession
from host.training.sampler import OUTSTANDING, QueueState
from host.training.sync.exchange.step_exchange import StepWork
from host.training.sync_plan import SyncPlan


@dataclass(frozen=True)
class StepAssignment:
    """What a step was dealt.

    Attributes:
        works: each device's part, of those that are reached from here.
        records: node -> its part of the epoch's records.
        number: of the deal.
    """

    works: list[StepWork]
    records: Mapping[str, Indices]
    number: int

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
        works = [self._work(sessions[node], part) for node, part in records.items() if len(part) and node in sessions]
        return StepAssignment(works, records, deal.number)

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
        return {"epoch_open": self.epoch_open, "queue": msgspec.to_builtins(self._queue.state)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`.

        Raises:
            KeyError, ValueError, msgspec.ValidationError: it is none.
        """
        self.epoch_open = bool(state["epoch_open"])
        self._queue = self._plan.make_queue(msgspec.convert(state["queue"], QueueState), self._outstanding)

    def _work(self, session: DeviceSession, records: Indices) -> StepWork:
        node = session.device
        return StepWork(session, self._fill_up(node, records).astype(np.uint32), self._plan.micro_batch(node))

    def _fill_up(self, node: str, records: Indices) -> Indices:
        """Return the records, a lone one with another of the shard: one alone has no variance to normalise with."""
        size = self._plan.sizes[self._nodes.index(node)]
        if not self._lone_record_fails or len(records) != 1 or size < 2:
            return records
        return np.append(records, (records[0] + 1) % size)
