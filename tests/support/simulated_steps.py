"""One step of a simulated array."""

import numpy as np

from csd_lab.simulate.nodes import Nodes
from csd_lab.simulate.simulated_run import SimulationTrace, simulate
from csd_lab.simulate.tree import array_tree
from host.core.tuning.batch_tuner import Batches, Floats
from host.policies.batching.fixed import FixedBatches


def array_step(nodes: Nodes, batches: Batches, slowdowns: Floats | None = None) -> SimulationTrace:
    """A run of one step of (nodes,) batches, undisturbed without slowdowns."""
    slow = np.ones(len(batches)) if slowdowns is None else slowdowns
    return simulate(array_tree(nodes), FixedBatches(batches), lambda _: slow, 1)
