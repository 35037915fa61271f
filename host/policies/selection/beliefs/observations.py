"""Observations from trials, as the model takes them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from firmware_agent.common.errors import ConfigurationError
from host.core.tuning.speed_table import SpeedTable
from host.policies.selection.beliefs.belief import Data, nearly_same
from host.policies.selection.cluster import Cluster, Configuration, Floats, Trial, TrialStep
from host.policies.selection.costs.speed_curves import NodeLog, NodeSteps, SecondsCurve, deviations_of, fit_curve
from host.policies.selection.costs.step_costs import Points

# Relative standard deviations of a step's seconds and watts before anything is seen, and for how many steps they count.
_NOISE, _WORTH = (0.02, 0.008), 4.0
# A table's shape is never quite right, nor is a clock.
_LEAST_ERROR, _NOT_SEEN = 0.002, 1e3
# A step that takes more than so many times the median was disturbed; one of twice as long may be the device's own way.
_FACTOR = 3.0
# One spike among so many steps and fewer; more of them are no exceptions.
_STEPS_PER_SPIKE = 8
# A device that takes longer than another of its kind by more than this share, and by more than so many standard
# deviations of a step, is slowed by other work. After so many steps it is not waited for that this ends.
_SLOWED, _SLOWED_DEVIATIONS, _ENOUGH = math.log(1.15), 3.0, 15
# Of a trial with a batch that is up to so many times as large a table says as much.
_NEAR_BATCH = 1.25
# Of a normal distribution, the standard deviation over the median deviation from the median.
_NORMAL = 1.4826
# So many steps of a device without a spike are believed before anything is seen.
_DEVICE_STEPS = 100
_Key = tuple[Configuration, tuple[int, ...]]


@dataclass
class _Row:
    """Steps of one configuration with its batches.

    Attributes:
        steps: of each, node -> logarithm of its seconds over the table's; and the logarithms of the step's seconds and
            watts, None if some device returned nothing.
        nodes: what each did, without spikes and without steps in which it was slowed.
        outputs: of the steps that nothing disturbed.
        whole: in how many steps each device returned; without those in which one was slowed, if they are many.
        lost: by how much single steps, less than `_FACTOR` times as long, were longer than the others, in steps.
    """

    steps: list[tuple[dict[str, float], tuple[float, float] | None]] = field(default_factory=list)
    nodes: dict[str, NodeSteps] = field(default_factory=dict)
    outputs: list[tuple[float, float]] = field(default_factory=list)
    whole: int = 0
    lost: float = 0.0

    def ratios(self) -> dict[str, dict[int, float]]:
        """Return node -> number of the step -> what it did."""
        nodes: dict[str, dict[int, float]] = {}
        for number, (ratios, _) in enumerate(self.steps):
            for node, ratio in ratios.items():
                nodes.setdefault(node, {})[number] = ratio
        return nodes

    def settle(self, limits: Mapping[str, float]) -> None:
        """Work out the rest; `limits` are those of the nodes' logarithms beyond which other work slowed them."""
        every = {number: output for number, (_, output) in enumerate(self.steps) if output is not None}
        ratios = self.ratios()
        slowed = {number for node, own in ratios.items() for number, ratio in own.items() if ratio > limits[node]}
        whole = {number: output for number, output in every.items() if number not in slowed}
        # As few as spikes are no reason to measure again; nor is what lasts.
        few = len(every) - len(whole) <= -(-len(every) // _STEPS_PER_SPIKE) or len(every) >= _ENOUGH
        self.whole, self.nodes = len(every if few else whole), {}
        disturbed = find_spikes({number: output[0] for number, output in whole.items()})
        for node, each in ratios.items():
            if own := {number: ratio for number, ratio in each.items() if ratio <= limits[node]}:
                spikes = find_spikes(own)
                disturbed |= spikes
                self.nodes[node] = NodeSteps.of([ratio for number, ratio in own.items() if number not in spikes])
        calm = [output for number, output in whole.items() if number not in disturbed]
        self.outputs = calm or list(whole.values())
        left = every.keys() - (whole.keys() - disturbed)
        single = [every[number][0] for number in left if number - 1 not in left and number + 1 not in left]
        longer = [math.expm1(each - calm[0][0]) for each in single if calm]
        self.lost = sum(each for each in longer if each < _FACTOR - 1)


class Observations:
    """All steps of all trials; equal trials are one."""

    def __init__(self, cluster: Cluster, tables: Sequence[SpeedTable]) -> None:
        """Take what they are compared with."""
        self._cluster, self._tables = cluster, tables
        self._kind_of = {node: number for number, kind in enumerate(cluster.kinds) for node in kind.nodes}
        self._rows: dict[_Key, _Row] = {}
        # Of each node what it did, and how it deviates from its kind; None if that is to be worked out anew.
        self._known: tuple[dict[str, NodeLog], dict[str, float]] | None = None

    def __bool__(self) -> bool:
        """Whether anything was seen."""
        return bool(self._rows)

    def steps_of(self, configuration: Configuration, batches: tuple[int, ...]) -> int:
        """Return how many whole steps of it were seen, with these batches or hardly other ones."""
        return sum(
            row.whole
            for (counts, own), row in self._rows.items()
            if counts == configuration and nearly_same(np.array(batches), np.array(own)).all()
        )

    def add(self, trial: Trial, seen: Sequence[TrialStep], whole_steps: bool = True) -> None:
        """Take the steps of a trial; only steps in which each device returned say what a step costs.

        Where they are no `whole_steps`, none does: what is beside computing has changed since.

        Raises:
            ConfigurationError: a figure is not positive, or of a node that there is not; nothing is taken then.
        """
        for each in seen:
            self._check(each, trial)
        if seen:
            row = self._rows.setdefault((trial.configuration, trial.batches), _Row())
            for each in seen:
                ratios = {node: self._log_ratio(node, seconds, trial) for node, seconds in each.compute_seconds.items()}
                whole = whole_steps and len(each.compute_seconds) == sum(trial.configuration)
                output = math.log(each.step_seconds), math.log(each.joules / each.step_seconds)
                row.steps.append((ratios, output if whole else None))
            self._settle()

    def note(self, node: str, steps: Sequence[tuple[int, float]]) -> None:
        """Take (records, seconds) of what a node did beside trials, but for steps larger than its table has."""
        for records, seconds in steps:
            if records <= self._tables[self._kind_of[node]].largest_batch:
                trial = Trial(*self._cluster.trial_of({node: records}), 1, "")
                row = self._rows.setdefault((trial.configuration, trial.batches), _Row())
                row.steps.append(({node: self._log_ratio(node, seconds, trial)}, None))
        self._settle()

    def _settle(self) -> None:
        """Work out what was seen, all trials together: who was slowed is told from the others of its kind."""
        lowest: dict[int, list[tuple[int, float]]] = {}
        spreads = [_NOISE[0]]
        for (_, batches), row in self._rows.items():
            for node, ratios in row.ratios().items():
                kind, own = self._kind_of[node], sorted(ratios.values())
                middle = own[len(own) // 2]
                lowest.setdefault(kind, []).append((batches[kind], own[len(own) // 4]))
                spreads.append(_NORMAL * sorted(abs(each - middle) for each in own)[len(own) // 2])
        beyond = max(_SLOWED, _SLOWED_DEVIATIONS * sorted(spreads)[len(spreads) // 2])
        for (_, batches), row in self._rows.items():
            row.settle({node: beyond + self._least(node, batches, lowest) for node in row.ratios()})
        self._known = None

    def _least(self, node: str, batches: Sequence[int], lowest: Mapping[int, Sequence[tuple[int, float]]]) -> float:
        """Return the least that a device of the node's kind did with such a batch; drives slow a host that trains."""
        kind = self._kind_of[node]
        if self._cluster.kinds[kind].local:
            return math.inf
        return min(low for batch, low in lowest[kind] if 1 / _NEAR_BATCH <= batch / batches[kind] <= _NEAR_BATCH)

    def _log_ratio(self, node: str, seconds: float, trial: Trial) -> float:
        kind = self._kind_of[node]
        return math.log(seconds / self._tables[kind].seconds(trial.batches[kind]))

    def _check(self, seen: TrialStep, trial: Trial) -> None:
        for node, seconds in seen.compute_seconds.items():
            if node not in self._kind_of or not trial.batches[self._kind_of[node]]:
                raise ConfigurationError(f"planner: {node!r} takes no part in this trial, but was seen in it")
            _positive(f"compute seconds of {node}", seconds)
        _positive("seconds of a step", seen.step_seconds)
        _positive("joules of a step", seen.joules)

    def deviations(self, nodes: Sequence[Sequence[str]]) -> list[Floats]:
        """Return how much longer the nodes of each kind take than its typical device, logarithms in the order given."""
        logs, _ = self._look()
        return [deviations_of([logs.get(node, []) for node in each]) for each in nodes]

    def _look(self) -> tuple[dict[str, NodeLog], dict[str, float]]:
        """Return what each node did, and its deviation from the typical device of its kind."""
        if self._known is None:
            self._known = self._work_out()
        return self._known

    def _work_out(self) -> tuple[dict[str, NodeLog], dict[str, float]]:
        logs: dict[str, NodeLog] = {}
        deviations: dict[str, float] = {}
        # Levels of trials depend on who took part, and who deviates on the levels: twice is enough.
        for _ in range(2):
            logs = {}
            for row in self._rows.values():
                levels = self._levels(row, deviations)
                for node, steps in row.nodes.items():
                    logs.setdefault(node, []).append((steps, levels[self._kind_of[node]]))
            for kind in self._cluster.kinds:
                seen = [node for node in kind.nodes if node in logs]
                deviations.update(zip(seen, deviations_of([logs[node] for node in seen]).tolist(), strict=True))
        return logs, deviations

    def _levels(self, row: _Row, deviations: dict[str, float]) -> dict[int, float]:
        """Return what a typical device of each kind did in a trial."""
        values: dict[int, list[float]] = {}
        for node, steps in row.nodes.items():
            values.setdefault(self._kind_of[node], []).append(steps.mean - deviations.get(node, 0.0))
        return {kind: sum(each) / len(each) for kind, each in values.items()}

    def curves(self, reference: Floats) -> tuple[SecondsCurve, ...]:
        """Return what is believed of each kind's curve; `reference` are batches at which tables are best."""
        _, deviations = self._look()
        levels = [self._levels(row, deviations) for row in self._rows.values()]
        drive = np.array([not kind.local for kind in self._cluster.kinds])
        all_drives = max(1, int(np.array(self._cluster.counts) @ drive))
        curves = []
        for number, (kind, table) in enumerate(zip(self._cluster.kinds, self._tables, strict=True)):
            seen = [
                (key[1][number], float(np.array(key[0]) @ drive) / all_drives, level[number], self._error(row, number))
                for (key, row), level in zip(self._rows.items(), levels, strict=True)
                if number in level
            ]
            columns = np.array(seen, np.float64).reshape(-1, 4).T
            curves.append(fit_curve(kind, table, float(reference[number]), *columns))
        return tuple(curves)

    def _error(self, row: _Row, kind: int) -> float:
        """Return the standard deviation of a trial's level of a kind."""
        count = sum(steps.steps for node, steps in row.nodes.items() if self._kind_of[node] == kind)
        return _NOISE[0] / math.sqrt(count)

    def data(self) -> Data:
        """Return what steps cost, for the model."""
        keys, rows = list(self._rows), list(self._rows.values())
        steps = np.array([len(row.outputs) for row in rows], np.int64)
        outputs = np.array([np.mean(row.outputs, axis=0) if row.outputs else (0.0, 0.0) for row in rows])
        counts, batches = np.array(keys, np.int64).reshape(-1, 2, len(self._tables)).transpose(1, 0, 2)
        spikes = sum(row.lost for row in rows) / sum(
            (len(each) for row in rows for each, _ in row.steps), _DEVICE_STEPS
        )
        return Data(Points(counts, batches), outputs.reshape(-1, 2), self._output_errors(rows, steps), spikes)

    def _output_errors(self, rows: Sequence[_Row], steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
        squares, freedom = _WORTH * np.array(_NOISE) ** 2, _WORTH
        for row in rows:
            if row.outputs:
                values = np.array(row.outputs)
                squares = squares + ((values - values.mean(axis=0)) ** 2).sum(axis=0)
                freedom += len(values) - 1
        errors = np.hypot(np.sqrt(squares / freedom) / np.sqrt(np.maximum(steps, 1))[:, None], _LEAST_ERROR)
        return np.asarray(np.where(steps[:, None] > 0, errors, _NOT_SEEN))


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigurationError(f"planner: {name} are {value!r}; a step takes some, measure it again")


def find_spikes(logarithms: Mapping[int, float]) -> set[int]:
    """Return which few steps of a trial took much longer than the others; a single step cannot be told from one.

    Args:
        logarithms: number of the step -> logarithm of its seconds.
    """
    if len(logarithms) < 2:
        return set()
    ordered = sorted(logarithms.values())
    # Of two steps the shorter one counts: what disturbs never makes a step shorter.
    most = ordered[(len(ordered) - 1) // 2] + math.log(_FACTOR)
    spikes = {number for number, each in logarithms.items() if each > most}
    return spikes if len(spikes) <= -(-len(logarithms) // _STEPS_PER_SPIKE) else set()
