"""The tuner of a simulation of several servers: one for all their nodes, as each server computes it for itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from host.plugins.loading import Plugin
from host.simulation.tree import Tree
from host.simulation.tree_run import TreeTuner
from host.simulation.tree_steps import TreeStepModel
from host.sync.sections import TuningSection
from host.tuning.base import Batches, Floats, Retune, Tuner
from host.tuning.fixed import FixedBatches
from host.tuning.hypertune import HyperTune
from host.tuning.retuner import Rules
from host.tuning.stannis import plan_batches
from host.tuning.user import make_user_tuner


def make_tree_tuner(
    name: str, tree: Tree, settings: TuningSection, batch_size: int, steps: int, plugin: Plugin | None = None
) -> TreeTuner:
    """Return a tuner for the nodes of all servers; see `tuners.make_tuner`.

    Raises:
        ConfigurationError: `batch_size` does not fit into a node, or no plan fits.
    """
    if name == "none":
        batches = np.full(len(tree.names), batch_size)
        tree.check_batches(batches)
        return OneByOne(FixedBatches(batches.tolist()))
    tables, sync_seconds = tree.tables, TreeStepModel(tree).sync_seconds()
    batches = plan_batches(tables, settings, sync_seconds).batches
    if plugin is not None:
        return OneByOne(make_user_tuner(plugin, tables, batches, tree.names, steps, sync_seconds))
    if name == "stannis":
        return OneByOne(FixedBatches(batches.tolist()))
    rules = Rules(settings.threshold, settings.window, settings.cost_steps)
    return HyperTune(tables, batches, rules, steps, sync_seconds, tree.names)


class OneByOne:
    """A tuner that is told of every device by itself."""

    def __init__(self, tuner: Tuner) -> None:
        """Take the tuner."""
        self._tuner = tuner

    @property
    def batches(self) -> Batches:
        """(devices,) records per step as of now."""
        return self._tuner.batches

    def probes(self, step: int) -> Batches:
        """Return (devices,) records that parked devices compute beside this step."""
        return self._tuner.probes(step)

    def observe(self, step: int, compute_seconds: Floats) -> Retune | None:
        """Take what a step cost, and return new batches if they are worth it."""
        return self._tuner.observe(step, compute_seconds)

    def leave_all(self, devices: Sequence[int]) -> None:
        """Note that devices are gone."""
        for device in devices:
            self._tuner.leave(device)

    def join_all(self, devices: Sequence[int]) -> None:
        """Note that devices are back."""
        for device in devices:
            self._tuner.join(device)
