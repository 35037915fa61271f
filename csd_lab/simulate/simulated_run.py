"""A simulated run: steps one after the other, with a tuner that watches, and competing work that comes and goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from csd_lab.simulate.nodes import Nodes
from csd_lab.simulate.simulated_steps import ArrayStepModel, SimulatedStepCost
from host.config.sync_section import DisturbSection
from host.core.device_time import TRAINER_WEIGHT
from host.core.tuning.batch_tuner import Batches, Floats, Retune

Slowdowns = Callable[[int], Floats]
"""Step, from 1 -> (nodes,) what each node's seconds are multiplied by; asked for in order."""


class Watcher(Protocol):
    """What a simulation asks of a tuner: a part of `batch_tuner.BatchTuner`, and `HyperTune.probes`."""

    @property
    def batches(self) -> Batches:
        """(nodes,) records per step as of now."""

    def probes(self, step: int) -> Batches:
        """Return (nodes,) records that parked nodes compute beside this step, to be seen."""

    def observe(self, step: int, compute_seconds: Floats) -> Retune | None:
        """Take (nodes,) compute seconds of a step; return new batches if they are worth it."""


@dataclass(frozen=True)
class SimulationTrace:
    """What a simulated run did. Arrays over the steps have one value per step.

    Attributes:
        seconds: (steps,) of the array.
        records: (steps,) records.
        joules: (steps,) of everything in the array.
        link_bytes: (steps,) over the host's link.
        compute_seconds: (nodes,) of all steps.
        components: energy component -> joules of all steps.
        first: (nodes,) batches of the first step.
        last: (nodes,) batches of the last step.
        retunes: the step from which each is in force, and what it was.
    """

    seconds: Floats
    records: Floats
    joules: Floats
    link_bytes: Floats
    compute_seconds: Floats
    components: dict[str, float]
    first: Batches
    last: Batches
    retunes: list[tuple[int, Retune]] = field(default_factory=list)

    def records_per_second(self, part: slice = slice(None)) -> float:
        """Return records per array second over `part` of the steps (0 is the first)."""
        return float(self.records[part].sum() / self.seconds[part].sum())

    def joules_per_record(self, part: slice = slice(None)) -> float:
        """Return joules per record over `part` of the steps."""
        return float(self.joules[part].sum() / self.records[part].sum())

    def link_bytes_per_record(self, part: slice = slice(None)) -> float:
        """Return bytes over the host's link per record over `part` of the steps."""
        return float(self.link_bytes[part].sum() / self.records[part].sum())


class Named(Protocol):
    """Nodes that go by names."""

    @property
    def names(self) -> Sequence[str]:
        """Of all of them."""

    def index(self, name: str) -> int:
        """Return the number of the node called `name`."""


class Competition:
    """The slowdowns of competing work with cgroup weights, as a job's ``disturb`` has it.

    A weight w takes w / (100 + w) of a node's core, so its seconds are those of the table times (100 + w) / 100; the
    weights of several at once add up.
    """

    def __init__(self, nodes: Named, disturb: Sequence[DisturbSection]) -> None:
        """Begin before step 1.

        Raises:
            ConfigurationError: a node is not among those simulated.
        """
        self._changes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for each in disturb:
            node = nodes.index(each.device)
            self._changes[each.at_step].append((node, each.weight))
            self._changes[each.at_step + each.steps].append((node, -each.weight))
        self._weights = np.zeros(len(nodes.names))
        self._slowdowns = np.ones(len(nodes.names))

    def __call__(self, step: int) -> Floats:
        """Return the slowdowns of `step`; every step has to be asked for."""
        for node, weight in self._changes.get(step, ()):
            self._weights[node] += weight
            self._slowdowns = (TRAINER_WEIGHT + self._weights) / TRAINER_WEIGHT
        return self._slowdowns


def simulate(
    nodes: Nodes, tuner: Watcher, slowdowns: Slowdowns, steps: int, retune_cost_steps: float = 0.0
) -> SimulationTrace:
    """Return what `steps` steps do.

    The tuner sees the compute seconds of every node after each step, NaN of one without records, and what it answers
    holds from the next step on. Probes of parked nodes cost nothing here.

    Args:
        nodes: who takes part.
        tuner: which says the batches; as many as there are nodes.
        slowdowns: of each step.
        steps: at least 1.
        retune_cost_steps: a retune costs the time and energy of so many steps like the one before it.
    """
    model = ArrayStepModel(nodes)
    recorder = _Recorder(steps, tuner.batches)
    for step in range(1, steps + 1):
        batches, slow = tuner.batches, slowdowns(step)
        cost = model.cost(batches, slow)
        probes = tuner.probes(step)
        alone = np.where(probes > 0, model.expected_seconds(probes) * slow, np.nan)
        retune = tuner.observe(step, np.where(batches > 0, cost.compute_seconds, alone))
        recorder.add(step, cost, batches, 1 + (retune_cost_steps if retune is not None else 0.0))
        if retune is not None:
            recorder.retunes.append((step + 1, retune))
    return recorder.trace()


class _Recorder:
    """Adds up a run."""

    def __init__(self, steps: int, batches: Batches) -> None:
        self._columns = np.zeros((4, steps))
        self._compute, self._first, self._last = np.zeros(len(batches)), batches.copy(), batches
        self._components: defaultdict[str, float] = defaultdict(float)
        self.retunes: list[tuple[int, Retune]] = []

    def add(self, step: int, cost: SimulatedStepCost, batches: Batches, factor: float) -> None:
        """Take one step; its time and energy are multiplied by `factor`."""
        joules = factor * sum(cost.joules.values())
        self._columns[:, step - 1] = factor * cost.seconds, cost.records, joules, cost.link_bytes
        self._compute += cost.compute_seconds
        self._last = batches
        for component, each in cost.joules.items():
            self._components[component] += factor * each

    def trace(self) -> SimulationTrace:
        """Return all of it."""
        seconds, records, joules, link_bytes = self._columns
        return SimulationTrace(
            *(seconds, records, joules, link_bytes, self._compute),
            components=dict(self._components),
            first=self._first,
            last=self._last.copy(),
            retunes=self.retunes,
        )
