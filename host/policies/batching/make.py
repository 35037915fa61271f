"""From what a job file says to the batch tuner of a run or of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from firmware_agent.common.errors import PluginError
from host.config.plugins.kinds import TUNER
from host.config.plugins.plugin_loading import Plugin
from host.config.plugins.plugin_section import TunerSection, UserSection, accepted
from host.config.sync_section import TuningSection
from host.core.tuning.batch_tuner import Batches, BatchTuner
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.fixed import FixedBatches
from host.policies.batching.retune_rules import RetuneRules
from host.policies.batching.step_watts import StepWatts
from host.policies.batching.user_tuner import UserTuner


@dataclass(frozen=True)
class TunerArguments:
    """What a run gives its tuner; a tuner takes of it what its constructor names.

    Attributes:
        tables: speed table of each device; None if there are none, and then batches stay.
        batches: (devices,) records per step to begin with.
        names: of the devices.
        total_steps: of the run, if batches stay.
        sync_seconds: what the exchange adds to each step.
        tuning_rules: when a retune is made.
        shares_records: whether one device can take records over from another: all are public, and fill a step.
    """

    tables: Sequence[SpeedTable] | None
    batches: Batches
    names: Sequence[str]
    total_steps: int
    sync_seconds: float
    tuning_rules: RetuneRules
    shares_records: bool = False


def make_rules(tuning: TuningSection, watts: StepWatts | None = None) -> RetuneRules:
    """Return the rules of retunes that a job file has; `watts` are the array's, for objective `energy`."""
    return RetuneRules(
        window=tuning.window,
        threshold=tuning.threshold,
        cost_steps=tuning.cost_steps,
        watts=watts if tuning.objective == "energy" else None,
    )


def make_tuner(section: TunerSection, arguments: TunerArguments, plugin: Plugin | None = None) -> BatchTuner:
    """Return the tuner that a job file names, at its beginning.

    Args:
        section: of the job file.
        arguments: of the run.
        plugin: the tuner that `section` names, if it is one of the user's own.

    Raises:
        PluginError: the user's own cannot be made, or is no tuner.
    """
    if arguments.tables is None:
        return FixedBatches(arguments.batches, None, arguments.names)
    if plugin is not None:  # what the user's own is given it may change
        tables, names = list(arguments.tables), list(arguments.names)
        own = replace(arguments, tables=tables, batches=np.array(arguments.batches, np.int64), names=names)
        return UserTuner(plugin, arguments.tables, plugin.make(**vars(own)))
    if isinstance(section, UserSection):
        raise PluginError(f"tuner {section.name!r} is not built in, and was not loaded")
    name, options = (section, {}) if isinstance(section, str) else (section.name, section.options)
    kind = TUNER.load(name)
    tuner: BatchTuner = kind(**options, **accepted(kind, vars(arguments)))
    return tuner
