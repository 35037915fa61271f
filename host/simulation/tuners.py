"""The tuner of a simulation, by its name in the job file."""

from __future__ import annotations

import numpy as np

from host.plugins.loading import Plugin
from host.simulation.nodes import Nodes, take_drives
from host.simulation.run import Watcher
from host.simulation.steps import StepModel
from host.sync.sections import TuningSection
from host.tuning.base import Batches
from host.tuning.fixed import FixedBatches
from host.tuning.hypertune import HyperTune
from host.tuning.retuner import Rules
from host.tuning.stannis import plan_batches
from host.tuning.user import make_user_tuner


def make_tuner(
    name: str, nodes: Nodes, settings: TuningSection, batch_size: int, steps: int, plugin: Plugin | None = None
) -> Watcher:
    """Return a tuner for all nodes.

    Args:
        name: ``none``, ``stannis`` or ``hypertune``, or anything with a `plugin`.
        nodes: who takes part.
        settings: of the job file.
        batch_size: of every node, without a tuner.
        steps: of the run.
        plugin: a tuner of the user's own, instead.

    Raises:
        ConfigurationError: `batch_size` does not fit into a node, or no plan fits.
    """
    if name == "none":
        batches = np.full(len(nodes.names), batch_size)
        nodes.check_batches(batches)
        return FixedBatches(batches.tolist())
    batches = plan(nodes, settings, nodes.drives)
    if plugin is not None:
        sync_seconds = StepModel(nodes).sync_seconds(np.minimum(batches, 1))
        return make_user_tuner(plugin, nodes.tables, batches, nodes.names, steps, sync_seconds)
    if name == "stannis":
        return FixedBatches(batches.tolist())
    return hypertune(nodes, settings, batches, steps)


def plan(nodes: Nodes, settings: TuningSection, computing: int) -> Batches:
    """Return (nodes,) STANNIS's batches if the first `computing` drives take part, and the host if it trains.

    Raises:
        ConfigurationError: there is nobody, or `slow_batch` does not fit.
    """
    active = take_drives(nodes, computing)
    chosen = np.flatnonzero(active)
    tables = nodes.tables
    sync_seconds = StepModel(nodes).sync_seconds(active)
    active[chosen] = plan_batches([tables[number] for number in chosen], settings, sync_seconds).batches
    return active


def hypertune(nodes: Nodes, settings: TuningSection, batches: Batches, steps: int) -> HyperTune:
    """Return HyperTune with the rules of a job file, starting from (nodes,) `batches`."""
    rules = Rules(settings.threshold, settings.window, settings.cost_steps)
    sync_seconds = StepModel(nodes).sync_seconds(np.minimum(batches, 1))
    return HyperTune(nodes.tables, batches, rules, steps, sync_seconds, nodes.names)
