"""Costs of one step of all servers of a simulation, from batches and slowdowns; see `csd_lab.simulate.array_step`."""

from __future__ import annotations

import numpy as np

from csd_lab.simulate.array_step import ALWAYS, WORK, ArrayStepModel, ServerSteps, StepBytes
from csd_lab.simulate.tree import Tree
from host.core.tuning.batch_tuner import Batches, Floats
from host.policies.batching.allocation import Allocator


class TreeStepModel:
    """Costs the steps of all servers. Keeps what does not change from step to step.

    Attributes:
        optimiser_seconds: of each host, in every step.
        optimiser_joules: (len(WORK), servers) that those take.
        always_watts: (len(ALWAYS), servers) of each server that is on.
    """

    def __init__(self, tree: Tree) -> None:
        """Take the servers."""
        self._tree, self._table = tree, Allocator(tree.tables, 0.0)
        self._encode = np.array([kind.encode_seconds for kind in tree.kinds])
        load = tree.load
        sizes = StepBytes(float(load.state_bytes), load.gradient_bytes, load.record_bytes)
        self._models = [
            ArrayStepModel(block.nodes.profiles(), block.nodes.host.profile, block.nodes.link, sizes)
            for block in tree.blocks
        ]
        self.optimiser_seconds = self._models[0].optimiser_seconds
        self.optimiser_joules = np.empty((len(WORK), tree.count))
        self.always_watts = np.empty((len(ALWAYS), tree.count))
        for block, model in zip(tree.blocks, self._models, strict=True):
            self.optimiser_joules[:, block.servers] = model.optimiser_joules[:, None]
            self.always_watts[:, block.servers] = model.always_watts[:, None]
        nobody, undisturbed = np.zeros(len(tree.names), np.int64), np.ones(len(tree.names))
        self._last = nobody, undisturbed, self._cost(nobody, undisturbed)

    def compute_seconds(self, batches: Batches, slowdowns: Floats) -> Floats:
        """Return (nodes,) seconds of forward and backward passes and encoding."""
        return self._table.table_seconds(batches) * slowdowns

    def cost(self, batches: Batches, slowdowns: Floats) -> tuple[ServerSteps, Floats]:
        """Return what a step costs, and (nodes,) compute seconds in it.

        Args:
            batches: (nodes,) records per node; 0 for one that takes no part, which still draws idle power.
            slowdowns: (nodes,) what each node's seconds are multiplied by.

        Raises:
            ConfigurationError: a batch does not fit, or a slowdown is no number.
        """
        before, slowed, cost = self._last
        steady = np.array_equal(before, batches)
        if steady and np.array_equal(slowed, slowdowns):
            return cost
        if not steady:
            self._tree.check_batches(batches)
        cost = self._cost(batches, slowdowns)
        self._last = batches.copy(), slowdowns.copy(), cost
        return cost

    def _cost(self, batches: Batches, slowdowns: Floats) -> tuple[ServerSteps, Floats]:
        compute = self.compute_seconds(batches, slowdowns)
        serial = np.minimum(compute, self._encode * slowdowns)
        columns, joules = np.empty((4, self._tree.count)), np.empty((len(WORK), self._tree.count))
        for block, model in zip(self._tree.blocks, self._models, strict=True):
            records = batches.take(block.places)
            rows, inverse = _distinct(records, slowdowns.take(block.places))
            places = block.places[rows]
            steps = model.step(records[rows], compute.take(places), serial.take(places))
            values = steps.arrived_seconds, steps.work_seconds, steps.sum_seconds, steps.link_bytes
            columns[:, block.servers] = np.stack(values)[:, inverse]
            joules[:, block.servers] = steps.joules[:, inverse]
        arrived, work, summed, link_bytes = columns
        return ServerSteps(arrived, work, summed, link_bytes, joules), compute


def _distinct(batches: Batches, slowdowns: Floats) -> tuple[Batches, Batches]:
    """Return rows among which each server has its equal, and for each server which of them that is.

    All that are as the last one are one row: most are, unless every node has noise of its own.
    """
    other = (batches[:-1] != batches[-1]) | (slowdowns[:-1] != slowdowns[-1])
    rows = np.flatnonzero(other.any(axis=1))
    inverse = np.zeros(len(batches), np.int64)
    inverse[rows] = np.arange(1, len(rows) + 1)
    return np.concatenate([[len(batches) - 1], rows]), inverse
