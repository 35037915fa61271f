"""The tuner of a simulation."""

from __future__ import annotations

import numpy as np

from csd_lab.simulate.nodes import Nodes, take_drives
from csd_lab.simulate.simulated_run import Watcher
from csd_lab.simulate.simulated_steps import ArrayStepModel
from host.config.plugins.plugin_loading import Plugin
from host.config.plugins.plugin_section import TunerSection
from host.config.sync_section import TuningSection
from host.core.tuning.batch_tuner import Batches
from host.policies.batching.hypertune import HyperTune
from host.policies.batching.make import TunerArguments, make_rules
from host.policies.batching.make import make_tuner as make_policy
from host.policies.batching.stannis import plan_batches


def make_tuner(
    tuner: TunerSection,
    nodes: Nodes,
    settings: TuningSection,
    batch_size: int,
    steps: int,
    plugin: Plugin | None = None,
) -> Watcher:
    """Return a tuner for all nodes.

    Args:
        tuner: of the job file, or a built-in name.
        nodes: who takes part.
        settings: of the job file.
        batch_size: of every node, without a tuner.
        steps: of the run.
        plugin: the tuner, if it is one of the user's own.

    Raises:
        ConfigurationError: `batch_size` does not fit into a node, or no plan fits.
    """
    steady = tuner == "none"
    batches = np.full(len(nodes.names), batch_size) if steady else plan(nodes, settings, nodes.drives)
    if steady:
        nodes.check_batches(batches)
    sync_seconds = ArrayStepModel(nodes).sync_seconds(np.minimum(batches, 1))
    arguments = TunerArguments(nodes.tables, batches, nodes.names, steps, sync_seconds, make_rules(settings))
    return make_policy(tuner, arguments, plugin)


def plan(nodes: Nodes, settings: TuningSection, computing: int) -> Batches:
    """Return (nodes,) STANNIS's batches if the first `computing` drives take part, and the host if it trains.

    Raises:
        ConfigurationError: there is nobody, or `slow_batch` does not fit.
    """
    active = take_drives(nodes, computing)
    chosen = np.flatnonzero(active)
    tables = nodes.tables
    sync_seconds = ArrayStepModel(nodes).sync_seconds(active)
    active[chosen] = plan_batches([tables[number] for number in chosen], settings, sync_seconds).batches
    return active


def hypertune(nodes: Nodes, settings: TuningSection, batches: Batches, steps: int) -> HyperTune:
    """Return HyperTune with the rules of a job file, starting from (nodes,) `batches`."""
    sync_seconds = ArrayStepModel(nodes).sync_seconds(np.minimum(batches, 1))
    return HyperTune(nodes.tables, batches, make_rules(settings), steps, sync_seconds, nodes.names)
