"""The tuner of a simulation: one for the nodes of all servers, as each server of a real run computes it for itself."""

from __future__ import annotations

import numpy as np

from csd_lab.simulate.tree import Tree
from host.config.plugins.plugin_loading import Plugin
from host.config.plugins.plugin_section import TunerSection
from host.config.sync_section import TuningSection
from host.core.tuning.batch_tuner import Batches, BatchTuner
from host.policies.batching.make import TunerArguments, make_rules
from host.policies.batching.make import make_tuner as make_policy
from host.policies.batching.stannis import plan_batches
from host.policies.batching.step_watts import StepWatts


def make_tuner(
    tuner: TunerSection,
    tree: Tree,
    settings: TuningSection,
    batch_size: int,
    steps: int,
    plugin: Plugin | None = None,
) -> BatchTuner:
    """Return a tuner for all nodes.

    Args:
        tuner: of the job file, or a built-in name.
        tree: who takes part.
        settings: of the job file.
        batch_size: of every node, without a tuner.
        steps: of the run.
        plugin: the tuner, if it is one of the user's own.

    Raises:
        ConfigurationError: `batch_size` does not fit into a node, or no plan fits.
    """
    steady = tuner == "none"
    batches = np.full(len(tree.names), batch_size) if steady else plan(tree, settings)
    tree.check_batches(batches)
    nodes = [kind.profile for kind in tree.kinds]
    hosts = [block.nodes.kinds[-1].profile for block in tree.blocks if not block.nodes.trains for _ in block.servers]
    rules = make_rules(settings, StepWatts.of(nodes, nodes + hosts))
    arguments = TunerArguments(tree.tables, batches, tree.names, steps, tree.sync_seconds(), rules)
    return make_policy(tuner, arguments, plugin)


def plan(tree: Tree, settings: TuningSection, computing: int | None = None) -> Batches:
    """Return (nodes,) STANNIS's batches if the hosts and the first `computing` drives take part, None for all drives.

    Raises:
        ConfigurationError: there is nobody, or `slow_batch` does not fit.
    """
    batches = np.ones(len(tree.names), np.int64)
    batches[np.flatnonzero(tree.is_drive)[computing:] if computing is not None else []] = 0
    chosen, tables = np.flatnonzero(batches), tree.tables
    sync_seconds = tree.sync_seconds(batches)
    batches[chosen] = plan_batches([tables[number] for number in chosen], settings, sync_seconds).batches
    return batches
