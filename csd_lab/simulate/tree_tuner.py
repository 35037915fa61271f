"""The tuner of a simulation of several servers: one for all their nodes, as each server computes it for itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from csd_lab.simulate.tree import Tree
from csd_lab.simulate.tree_run import TreeTuner
from csd_lab.simulate.tree_steps import TreeStepModel
from host.config.plugins.plugin_loading import Plugin
from host.config.plugins.plugin_section import TunerSection
from host.config.sync_section import TuningSection
from host.core.tuning.batch_tuner import Batches, BatchTuner, Floats, Retune
from host.policies.batching.make import TunerArguments, make_rules, make_tuner
from host.policies.batching.stannis import plan_batches


def make_tree_tuner(
    tuner: TunerSection,
    tree: Tree,
    settings: TuningSection,
    batch_size: int,
    steps: int,
    plugin: Plugin | None = None,
) -> TreeTuner:
    """Return a tuner for the nodes of all servers; see `tuners.make_tuner`.

    Raises:
        ConfigurationError: `batch_size` does not fit into a node, or no plan fits.
    """
    tables, sync_seconds = tree.tables, TreeStepModel(tree).sync_seconds()
    if tuner == "none":
        batches = np.full(len(tree.names), batch_size)
        tree.check_batches(batches)
    else:
        batches = plan_batches(tables, settings, sync_seconds).batches
    arguments = TunerArguments(tables, batches, tree.names, steps, sync_seconds, make_rules(settings))
    made = make_tuner(tuner, arguments, plugin)
    return made if isinstance(made, TreeTuner) else OneByOne(made)


class OneByOne:
    """A tuner that is told of every device by itself."""

    def __init__(self, tuner: BatchTuner) -> None:
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
