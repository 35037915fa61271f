"""A simulated run of several servers: steps one after the other, sums between servers, failures. Pure.

Servers compute `reduce_every` steps by themselves, each at its own pace, then wait for the slowest and add up. So
such a window of steps lasts as long as the slowest server's steps and the all-reduce; its steps are charged as that
server's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from csd_emu.perfmodel.allreduce import AllReduce
from csd_lab.simulate.outages import OutageChanges, Outages
from csd_lab.simulate.simulated_run import Slowdowns, Watcher
from csd_lab.simulate.tree import Flags, Tree
from csd_lab.simulate.tree_steps import ServerSteps, TreeStepModel
from host.core.tuning.batch_tuner import Batches, Floats, Retune

PARTS = ("compute", "drive_link", "host", "server_link", "rack_uplink", "hops", "failures", "retunes")
"""Where seconds go: reading and computing of the slowest server's slowest node; its drives' link; its sum and its
optimiser; the all-reduce's bytes at the servers' links, what the uplinks add, its latencies; failures; retunes."""
_FAILURES, _RETUNES = PARTS.index("failures"), PARTS.index("retunes")
LEVELS = ("drive_links", "server_links", "rack_uplinks")
"""Where bytes cross: host and drives; out of servers; of those, up out of racks."""


@runtime_checkable
class TreeTuner(Watcher, Protocol):
    """What a simulation of several servers asks of a tuner."""

    def leave_all(self, devices: Sequence[int]) -> None:
        """Note that devices are gone, all at the same time."""

    def join_all(self, devices: Sequence[int]) -> None:
        """Note that devices are back, all at the same time."""


@dataclass(frozen=True)
class TreeTrace:
    """What a simulated run did. Arrays over the steps have one value, or row, per step.

    Attributes:
        parts: (steps, len(PARTS)) seconds.
        records: (steps,) records in gradients that counted.
        joules: (steps,) of all servers that were on, drives and chassis included.
        bytes: (steps, len(LEVELS)) that crossed.
        servers: (steps,) how many took part to the end.
        drives: (steps,) how many had records, and delivered.
        compute_seconds: (nodes,) of all steps.
        components: energy component -> joules of all steps.
        first: (nodes,) batches of the first step.
        last: (nodes,) batches of the last step.
        retunes: the step from which each is in force, and what it was.
        losses: servers lost, servers back, drives lost, drives back.
        ended: why it ended before its last step; empty if it did not.
    """

    parts: Floats
    records: Floats
    joules: Floats
    bytes: Floats
    servers: Batches
    drives: Batches
    compute_seconds: Floats
    components: dict[str, float]
    first: Batches
    last: Batches
    retunes: list[tuple[int, Retune]] = field(default_factory=list)
    losses: tuple[int, ...] = (0, 0, 0, 0)
    ended: str = ""

    @property
    def seconds(self) -> Floats:
        """(steps,) of all servers."""
        seconds: Floats = self.parts.sum(axis=1)
        return seconds

    def records_per_second(self) -> float:
        """Return records per second of the whole run."""
        return float(self.records.sum() / self.seconds.sum())


def simulate_tree(
    tree: Tree, tuner: TreeTuner, slowdowns: Slowdowns, outages: Outages, steps: int, retune_cost_steps: float = 0.0
) -> TreeTrace:
    """Return what `steps` steps do.

    The tuner is one for all nodes, as each server would compute it for itself from what all have seen. It sees the
    compute seconds of every node when servers add up, step after step, NaN of one without records, up to a step that
    makes it retune; its answer holds from the next step on.

    A drive that fails in a step has delivered nothing of it; a server that fails has delivered nothing since servers
    added up before, the all-reduce that it broke is done again without it, and a new rendezvous comes first. So it is
    when servers come back. With fewer servers than `Tree.least`, those that are there wait for others.

    Args:
        tree: who takes part.
        tuner: which says the batches; as many as there are nodes.
        slowdowns: of each step, (nodes,).
        outages: who fails when.
        steps: at least 1.
        retune_cost_steps: a retune costs the time and energy of so many steps like the one before it.
    """
    run = _Run(tree, tuner, slowdowns, outages, steps, retune_cost_steps)
    done = 0
    while done < steps and not run.ended:
        done += run.window(done + 1, min(tree.reduce_every, steps - done))
    return run.trace(done)


@dataclass
class _Part:
    """One step of a window, until it is charged."""

    steps: ServerSteps
    batches: Batches
    delivered: Batches
    seen: Floats


class _Run:
    """The state between windows."""

    def __init__(
        self, tree: Tree, tuner: TreeTuner, slowdowns: Slowdowns, outages: Outages, steps: int, cost_steps: float
    ) -> None:
        self._tree, self._tuner, self._slowdowns, self._outages = tree, tuner, slowdowns, outages
        self._cost_steps, self._model = cost_steps, TreeStepModel(tree)
        self._reduce = _remembered(tree)
        self._parts = np.zeros((steps, len(PARTS)))
        self._rows = np.zeros((4, steps))
        self._bytes = np.zeros((steps, len(LEVELS)))
        self._compute, self._components = np.zeros(len(tree.names)), defaultdict[str, float](float)
        self._first, self._last = tuner.batches.copy(), tuner.batches
        self._retunes: list[tuple[int, Retune]] = []
        self._losses = np.zeros(4, np.int64)
        self._clock, self.ended = 0.0, ""

    def window(self, first: int, count: int) -> int:
        """Let `count` steps pass, from number `first` on; return how many did."""
        waited = self._wait(first)
        if self.ended:
            return 0
        on = ~self._outages.servers.gone
        parts, elapsed = self._local(first, count, on)
        self._end(first, parts, on, elapsed, waited)
        return count

    def _wait(self, first: int) -> float:
        """Wait until enough servers are there, and for their rendezvous; return for how long."""
        begin, fates = self._clock, self._outages.servers
        while (there := int((~fates.gone).sum())) < self._tree.least:
            back = fates.next_return()
            if not np.isfinite(back):
                self.ended = (
                    f"step {first} was never taken: {there} of {len(fates.gone)} servers are left, fewer than "
                    f"{self._tree.least} (membership.min), and none comes back"
                )
                return 0.0
            self._clock = max(self._clock, back)
            self._change_servers(self._clock)
        if self._clock > begin:
            self._clock += self._outages.rendezvous_seconds
        return self._clock - begin

    def _local(self, first: int, count: int, on: Flags) -> tuple[list[_Part], Floats]:
        """Let every server compute `count` steps; return them, and how long each server took, (servers,)."""
        parts: list[_Part] = []
        elapsed = np.zeros(len(on))
        for step in range(first, first + count):
            batches = np.where(self._outages.present, self._tuner.batches, 0)
            slow = self._slowdowns(step)
            cost = self._model.cost(batches, slow)
            elapsed = elapsed + np.where(on, cost.ready_seconds + self._model.optimiser_seconds, 0.0)
            alone = self._probe(step, slow)
            changes = self._outages.pass_drives(self._clock + float(elapsed.max()))
            self._count(2, changes)
            delivered, seen = batches.copy(), np.where(batches > 0, cost.compute_seconds, alone)
            delivered[changes.lost], seen[changes.lost] = 0, np.nan
            self._move(changes, ~self._outages.servers.gone[self._tree.server_of])
            parts.append(_Part(cost, batches, delivered, seen))
        return parts, elapsed

    def _probe(self, step: int, slow: Floats) -> Floats:
        """Return (nodes,) seconds of parked nodes' probes, NaN of others."""
        probes = np.where(self._outages.present, self._tuner.probes(step), 0)
        if not probes.any():
            return np.full(len(probes), np.nan)
        return np.where(probes > 0, self._model.expected_seconds(probes) * slow, np.nan)

    def _end(self, first: int, parts: list[_Part], on: Flags, elapsed: Floats, waited: float) -> None:
        """Add up between servers, and charge the window's steps."""
        slowest, between, last = _slowest(elapsed, parts), self._reduce(on), first + len(parts) - 1
        changes, broken = self._change_servers(self._clock + float(elapsed.max()) + between.seconds), 0.0
        left = on.copy()
        left[changes.lost] = False
        if len(changes.lost):
            broken, between = between.seconds, self._reduce(left)
            for part in parts:
                part.seen[~left[self._tree.server_of]] = np.nan
        if len(changes.lost) or len(changes.back):
            broken += self._outages.rendezvous_seconds
        retune = self._observe(first, parts)
        for step, part in enumerate(parts, first):
            shared = between if step == last else AllReduce()
            charged = self._charge(part.steps, slowest, shared)
            if step == last:
                charged[_FAILURES] = waited + broken
                charged[_RETUNES] = self._cost_steps * charged[:_FAILURES].sum() if retune is not None else 0.0
            self._add(step, part, charged, shared, on, left)
        self._clock += float(self._parts[first - 1 : last].sum()) - waited

    def _charge(self, steps: ServerSteps, slowest: int, between: AllReduce) -> Floats:
        """Return the seconds of a step, (len(PARTS),), without failures and retunes."""
        work, arrived = float(steps.work_seconds[slowest]), float(steps.arrived_seconds[slowest])
        host = float(steps.sum_seconds[slowest]) + self._model.optimiser_seconds
        reduce = between.link_seconds, between.uplink_seconds, between.hop_seconds
        return np.array([work, arrived - work, host, *reduce, 0.0, 0.0])

    def _add(self, step: int, part: _Part, charged: Floats, between: AllReduce, on: Flags, left: Flags) -> None:
        """Write a step down; a retune costs as much energy as its share of the step."""
        steps, powered = part.steps, on.astype(float)
        factor = 1 + float(charged[_RETUNES] / charged[:_FAILURES].sum())
        drawn = defaultdict[str, float](float, self._model.on_joules(float(charged.sum()), powered))
        for component, each in steps.joules.items():
            drawn[component] += factor * float(each.sum())
        for component, joules in self._model.optimiser_joules(powered).items():
            drawn[component] += factor * joules
        for component, joules in drawn.items():
            self._components[component] += joules
        delivered = np.where(left[self._tree.server_of], part.delivered, 0)
        drives = np.count_nonzero(delivered[self._tree.is_drive])
        self._parts[step - 1] = charged
        self._rows[:, step - 1] = delivered.sum(), sum(drawn.values()), left.sum(), drives
        self._bytes[step - 1] = float(steps.drive_bytes.sum()), between.link_bytes, between.uplink_bytes
        self._compute += steps.compute_seconds
        self._last = part.batches

    def _observe(self, first: int, parts: list[_Part]) -> Retune | None:
        """Show the tuner what was seen; return its retune, in force from the next window on."""
        for number, part in enumerate(parts):
            retune = self._tuner.observe(first + number, part.seen)
            if retune is not None:
                self._retunes.append((first + len(parts), retune))
                return retune
        return None

    def _change_servers(self, now: float) -> OutageChanges:
        changes = self._outages.pass_servers(now)
        self._count(0, changes)
        if len(changes.lost) or len(changes.back):
            of = self._tree.server_of
            there = ~self._outages.drives_gone
            lost, back = (np.flatnonzero(np.isin(of, which)) for which in (changes.lost, changes.back))
            self._move(OutageChanges(lost, back), there)
        return changes

    def _count(self, place: int, changes: OutageChanges) -> None:
        self._losses[place : place + 2] += len(changes.lost), len(changes.back)

    def _move(self, changes: OutageChanges, matters: Flags) -> None:
        """Tell the tuner of nodes for which it `matters`, (nodes,): the others are gone for another reason too."""
        if lost := changes.lost[matters[changes.lost]].tolist():
            self._tuner.leave_all(lost)
        if back := changes.back[matters[changes.back]].tolist():
            self._tuner.join_all(back)

    def trace(self, done: int) -> TreeTrace:
        """Return what the first `done` steps did."""
        records, joules, servers, drives = self._rows[:, :done]
        return TreeTrace(
            parts=self._parts[:done],
            records=records,
            joules=joules,
            bytes=self._bytes[:done],
            servers=servers.astype(np.int64),
            drives=drives.astype(np.int64),
            compute_seconds=self._compute,
            components=dict(self._components),
            first=self._first,
            last=self._last.copy(),
            retunes=self._retunes,
            losses=tuple(self._losses.tolist()),
            ended=self.ended,
        )


def _slowest(elapsed: Floats, parts: Sequence[_Part]) -> int:
    """Return the server that took longest; of several that end together, as at one link, who computed longest."""
    work = sum((part.steps.work_seconds for part in parts), np.zeros(len(elapsed)))
    return int(np.where(np.isclose(elapsed, elapsed.max(), rtol=1e-9, atol=0.0), work, -1.0).argmax())


def _remembered(tree: Tree) -> Callable[[Flags], AllReduce]:
    """Return `tree.reduce` that works out the same servers once."""
    known: dict[bytes, AllReduce] = {}

    def reduce(present: Flags) -> AllReduce:
        key = present.tobytes()
        if key not in known:
            known.clear()  # who is there changes seldom, and seldom back
            known[key] = tree.reduce(present)
        return known[key]

    return reduce
