"""A simulated run: steps one after the other, competing work, sums between servers, failures. Pure.

Servers compute `reduce_every` steps by themselves, each at its own pace, then wait for the slowest and add up. So
such a window of steps lasts as long as the slowest server's steps and the all-reduce; its steps are charged as that
server's. Of one server every window is its own steps, and there is nothing to add up.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from csd_emu.perfmodel.allreduce import AllReduce
from csd_lab.simulate.array_step import ALWAYS, WORK, ServerSteps
from csd_lab.simulate.outages import OutageChanges, Outages
from csd_lab.simulate.tree import Flags, Tree
from csd_lab.simulate.tree_steps import TreeStepModel
from host.config.sync_section import DisturbSection
from host.core.device_time import TRAINER_WEIGHT
from host.core.tuning.batch_tuner import Batches, BatchTuner, Floats, Retune

PARTS = ("compute", "drive_link", "host", "server_link", "rack_uplink", "hops", "failures", "retunes")
"""Where seconds go: reading and computing of the slowest server's slowest node; its drives' link; its sum and its
optimiser; the all-reduce's bytes at the servers' links, what the uplinks add, its latencies; failures; retunes."""
_FAILURES, _RETUNES = PARTS.index("failures"), PARTS.index("retunes")
LEVELS = ("drive_links", "server_links", "rack_uplinks")
"""Where bytes cross: host and drives; out of servers; of those, up out of racks."""

Slowdowns = Callable[[int], Floats]
"""Step, from 1 -> (nodes,) what each node's seconds are multiplied by; asked for in order."""


@dataclass
class SimulationTrace:
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
    losses: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    ended: str = ""

    @classmethod
    def of(cls, steps: int, batches: Batches) -> SimulationTrace:
        """Return that of a run of so many steps which is yet to begin with (nodes,) `batches`."""
        return cls(
            parts=np.zeros((steps, len(PARTS))),
            records=np.zeros(steps),
            joules=np.zeros(steps),
            bytes=np.zeros((steps, len(LEVELS))),
            servers=np.zeros(steps, np.int64),
            drives=np.zeros(steps, np.int64),
            compute_seconds=np.zeros(len(batches)),
            components=dict.fromkeys((*ALWAYS, *WORK), 0.0),
            first=batches.copy(),
            last=batches,
        )

    @property
    def seconds(self) -> Floats:
        """(steps,) of all servers."""
        seconds: Floats = self.parts.sum(axis=1)
        return seconds

    def cut(self, steps: int) -> None:
        """Keep the first steps."""
        for name in ("parts", "records", "joules", "bytes", "servers", "drives"):
            setattr(self, name, getattr(self, name)[:steps])

    def records_per_second(self, part: slice = slice(None)) -> float:
        """Return records per array second over `part` of the steps (0 is the first)."""
        return float(self.records[part].sum() / self.seconds[part].sum())

    def joules_per_record(self, part: slice = slice(None)) -> float:
        """Return joules per record over `part` of the steps; 0 without any record."""
        records = float(self.records[part].sum())
        return float(self.joules[part].sum()) / records if records else 0.0


class Competition:
    """The slowdowns of competing work with cgroup weights, as a job's ``disturb`` has it.

    A weight w takes w / (100 + w) of a node's core, so its seconds are those of the table times (100 + w) / 100; the
    weights of several at once add up.
    """

    def __init__(self, tree: Tree, disturb: Sequence[DisturbSection]) -> None:
        """Begin before step 1.

        Raises:
            ConfigurationError: a node is not among those simulated.
        """
        self._changes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for each in disturb:
            node = tree.index(each.device)
            self._changes[each.at_step].append((node, each.weight))
            self._changes[each.at_step + each.steps].append((node, -each.weight))
        self._weights = np.zeros(len(tree.names))
        self._slowdowns = np.ones(len(tree.names))

    def __call__(self, step: int) -> Floats:
        """Return the slowdowns of `step`; every step has to be asked for."""
        for node, weight in self._changes.get(step, ()):
            self._weights[node] += weight
            self._slowdowns = (TRAINER_WEIGHT + self._weights) / TRAINER_WEIGHT
        return self._slowdowns


def simulate(
    tree: Tree,
    tuner: BatchTuner,
    slowdowns: Slowdowns,
    steps: int,
    retune_cost_steps: float = 0.0,
    outages: Outages | None = None,
) -> SimulationTrace:
    """Return what `steps` steps do.

    The tuner is one for all nodes, as each server would compute it for itself from what all have seen. It sees the
    compute seconds of every node when servers add up, step after step, NaN of one without records, up to a step that
    makes it retune; its answer holds from the next step on. Probes of parked nodes cost nothing here.

    A drive that fails in a step has delivered nothing of it; a server that fails has delivered nothing since servers
    added up before, the all-reduce that it broke is done again without it, and a new rendezvous comes first. So it is
    when servers come back. With fewer servers than `membership.min`, those that are there wait for others.

    Args:
        tree: who takes part.
        tuner: which says the batches; as many as there are nodes.
        slowdowns: of each step, (nodes,).
        steps: at least 1.
        retune_cost_steps: a retune costs the time and energy of so many steps like the one before it.
        outages: who fails when; None: nobody ever.
    """
    outages = outages or Outages(tree, None, np.random.default_rng(0))
    run = _Run(tree, tuner, slowdowns, outages, retune_cost_steps, steps)
    done = 0
    while done < steps and not run.trace.ended:
        done += run.window(done + 1, min(tree.config.reduce_every, steps - done))
    run.trace.cut(done)
    return run.trace


@dataclass
class _Part:
    """One step of a window, until it is charged: its cost, (nodes,) batches, compute seconds, and what came of them."""

    cost: ServerSteps
    batches: Batches
    compute_seconds: Floats
    delivered: Batches
    seen: Floats


class _Run:
    """The state between windows."""

    def __init__(
        self, tree: Tree, tuner: BatchTuner, slowdowns: Slowdowns, outages: Outages, cost_steps: float, steps: int
    ) -> None:
        self._tree, self._tuner, self._slowdowns, self._outages = tree, tuner, slowdowns, outages
        self._cost_steps, self._model, self._clock = cost_steps, TreeStepModel(tree), 0.0
        # Who is there changes seldom, and seldom back.
        self._reduce = functools.lru_cache(1)(lambda present: tree.reduce(np.frombuffer(present, bool)))
        self.trace = SimulationTrace.of(steps, tuner.batches)

    def window(self, first: int, count: int) -> int:
        """Let `count` steps pass, from number `first` on; return how many did."""
        waited = self._wait(first)
        if self.trace.ended:
            return 0
        on = ~self._outages.servers.gone
        parts, elapsed = self._local(first, count, on)
        self._end(first, parts, on, elapsed, waited)
        return count

    def _wait(self, first: int) -> float:
        """Wait until enough servers are there, and for their rendezvous; return for how long."""
        begin, fates, least = self._clock, self._outages.servers, self._tree.config.membership.min
        while (there := int((~fates.gone).sum())) < least:
            back = fates.next_return()
            if not np.isfinite(back):
                self.trace.ended = (
                    f"step {first} was never taken: {there} of {len(fates.gone)} servers are left, fewer than "
                    f"{least} (membership.min), and none comes back"
                )
                return 0.0
            self._clock = max(self._clock, back)
            self._change_servers(self._clock)
        if self._clock > begin:
            self._clock += self._outages.rendezvous_seconds
        return self._clock - begin

    def _local(self, first: int, count: int, on: Flags) -> tuple[list[_Part], Floats]:
        """Let every server compute `count` steps; return them, and how long each server took, (servers,)."""
        model, parts, elapsed = self._model, [], np.zeros(len(on))
        for step in range(first, first + count):
            batches, slow = np.where(self._outages.present, self._tuner.batches, 0), self._slowdowns(step)
            cost, compute = model.cost(batches, slow)
            elapsed = elapsed + np.where(on, cost.ready_seconds + model.optimiser_seconds, 0.0)
            probes = np.where(self._outages.present, self._tuner.probes(step), 0)
            seen = model.compute_seconds(np.where(batches > 0, batches, probes), slow) if probes.any() else compute
            changes = self._outages.pass_drives(self._clock + float(elapsed.max()))
            delivered, seen = batches.copy(), np.where(seen > 0, seen, np.nan)
            if changes:
                self._count(2, changes)
                delivered[changes.lost], seen[changes.lost] = 0, np.nan
                self._move(changes, ~self._outages.servers.gone[self._tree.server_of])
            parts.append(_Part(cost, batches, compute, delivered, seen))
        return parts, elapsed

    def _end(self, first: int, parts: list[_Part], on: Flags, elapsed: Floats, waited: float) -> None:
        """Add up between servers, and charge the window's steps."""
        slowest, between, last = _slowest(elapsed, parts), self._reduce(on.tobytes()), first + len(parts) - 1
        changes, broken = self._change_servers(self._clock + float(elapsed.max()) + between.seconds), 0.0
        left = on.copy()
        left[changes.lost] = False
        if len(changes.lost):
            broken, between = between.seconds, self._reduce(left.tobytes())
            lost = ~left[self._tree.server_of]
            for part in parts:
                part.delivered[lost], part.seen[lost] = 0, np.nan
        if changes:
            broken += self._outages.rendezvous_seconds
        retune = self._observe(first, parts)
        for step, part in enumerate(parts, first):
            shared = between if step == last else AllReduce()
            charged = self._charge(part.cost, slowest, shared)
            if step == last:
                charged[_FAILURES] = waited + broken
                charged[_RETUNES] = self._cost_steps * charged[:_FAILURES].sum() if retune is not None else 0.0
            self._add(step - 1, part, charged, shared, on, left)
        self._clock += float(self.trace.parts[first - 1 : last].sum()) - waited

    def _charge(self, cost: ServerSteps, slowest: int, between: AllReduce) -> Floats:
        """Return the seconds of a step, (len(PARTS),), without failures and retunes."""
        work, arrived = float(cost.work_seconds[slowest]), float(cost.arrived_seconds[slowest])
        host = float(cost.sum_seconds[slowest]) + self._model.optimiser_seconds
        reduce = between.link_seconds, between.uplink_seconds, between.hop_seconds
        return np.array([work, arrived - work, host, *reduce, 0.0, 0.0])

    def _add(self, row: int, part: _Part, charged: Floats, between: AllReduce, on: Flags, left: Flags) -> None:
        """Write a step down; a retune costs as much energy as its share of the step."""
        trace, model, cost, powered = self.trace, self._model, part.cost, on.astype(float)
        factor = 1 + float(charged[_RETUNES] / charged[:_FAILURES].sum())
        work = factor * (cost.joules.sum(axis=1) + model.optimiser_joules @ powered)
        drawn = [*(model.always_watts @ powered * charged.sum()).tolist(), *work.tolist()]
        for component, joules in zip(trace.components, drawn, strict=True):
            trace.components[component] += joules
        trace.parts[row] = charged
        trace.records[row], trace.joules[row] = part.delivered.sum(), sum(drawn)
        trace.bytes[row] = float(cost.link_bytes.sum()), between.link_bytes, between.uplink_bytes
        trace.servers[row], trace.drives[row] = left.sum(), np.count_nonzero(part.delivered * self._tree.is_drive)
        trace.compute_seconds += part.compute_seconds
        trace.last = part.batches

    def _observe(self, first: int, parts: list[_Part]) -> Retune | None:
        """Show the tuner what was seen; return its retune, in force from the next window on."""
        for number, part in enumerate(parts):
            retune = self._tuner.observe(first + number, part.seen)
            if retune is not None:
                self.trace.retunes.append((first + len(parts), retune))
                return retune
        return None

    def _change_servers(self, now: float) -> OutageChanges:
        changes = self._outages.pass_servers(now)
        if changes:
            self._count(0, changes)
            of = self._tree.server_of
            lost, back = (np.flatnonzero(np.isin(of, which)) for which in (changes.lost, changes.back))
            self._move(OutageChanges(lost, back), ~self._outages.drives_gone)
        return changes

    def _count(self, place: int, changes: OutageChanges) -> None:
        self.trace.losses[place] += len(changes.lost)
        self.trace.losses[place + 1] += len(changes.back)

    def _move(self, changes: OutageChanges, matters: Flags) -> None:
        """Tell the tuner of nodes for which it `matters`, (nodes,): the others are gone for another reason too."""
        for act, nodes in ((self._tuner.leave, changes.lost), (self._tuner.join, changes.back)):
            for node in nodes[matters[nodes]].tolist():
                act(node)


def _slowest(elapsed: Floats, parts: Sequence[_Part]) -> int:
    """Return the server that took longest; of several that end together, as at one link, who computed longest."""
    work = sum((part.cost.work_seconds for part in parts), np.zeros(len(elapsed)))
    return int(np.where(elapsed >= (1 - 1e-9) * elapsed.max(), work, -1.0).argmax())
