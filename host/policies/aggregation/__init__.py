"""Aggregation strategies: one algorithm per file, each with its paper and equation; pure, over NumPy arrays."""

from __future__ import annotations

from collections.abc import Collection

from firmware_agent.common.errors import ConfigurationError, PluginError
from host.config.plugins.kinds import STRATEGY
from host.config.plugins.plugin_loading import Plugin
from host.config.plugins.plugin_section import StrategySection, UserSection, accepted
from host.core.tensor_sums import weighted_mean
from host.policies.aggregation.clipping import Clipped
from host.policies.aggregation.fedadam import FedAdagrad, FedAdam, FedYogi
from host.policies.aggregation.fedavg import FedAvg
from host.policies.aggregation.fedbuff import FedBuff
from host.policies.aggregation.fednova import FedNova
from host.policies.aggregation.fedprox import FedProx
from host.policies.aggregation.krum import Krum, MultiKrum
from host.policies.aggregation.median import Median, TrimmedMean
from host.policies.aggregation.private_fedavg import PrivateFedAvg
from host.policies.aggregation.scaffold import FedBn, Scaffold
from host.policies.aggregation.strategy import Contribution, DriveHistory, FirstRound, Stateless, Strategy, check_names
from host.policies.aggregation.update_direction import Directions
from host.policies.aggregation.user_strategy import UserStrategy

__all__ = [
    "Clipped",
    "Contribution",
    "Directions",
    "DriveHistory",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedBn",
    "FedBuff",
    "FedNova",
    "FedProx",
    "FedYogi",
    "FirstRound",
    "Krum",
    "Median",
    "MultiKrum",
    "PrivateFedAvg",
    "Scaffold",
    "Stateless",
    "Strategy",
    "TrimmedMean",
    "UserStrategy",
    "check_drives",
    "check_names",
    "make_strategy",
    "weighted_mean",
]


def make_strategy(
    section: StrategySection, momentum: float, parameters: Collection[str], plugin: Plugin | None = None
) -> Strategy:
    """Return the strategy that a job file names, at its beginning.

    Args:
        section: of the job file.
        momentum: of SGD in the drives.
        parameters: names of the weights that are trained; all others are averaged by samples.
        plugin: the strategy that `section` names, if it is one of the user's own.

    Raises:
        PluginError: the user's own cannot be made, or is no strategy.
    """
    if plugin is not None:
        return UserStrategy(plugin, momentum, parameters)
    if isinstance(section, UserSection):
        raise PluginError(f"strategy {section.name!r} is not built in, and was not loaded")
    kind = STRATEGY.load(section.name)
    strategy: Strategy = kind(**section.options, **accepted(kind, {"momentum": momentum, "parameters": parameters}))
    bound = section.update_norm
    return strategy if bound is None else Clipped(strategy, bound, parameters)


def check_drives(strategy: Strategy, name: str, drives: int) -> None:
    """Return if rounds of so many `drives` are enough for the `strategy` that a job file calls `name`.

    Raises:
        ConfigurationError: they are not.
    """
    if drives < (needed := max(strategy.least_contributions, getattr(strategy, "buffer", 0))):
        raise ConfigurationError(
            f"strategy {name}: needs the weights of {needed} drives in a round, and {drives} "
            "take part; add drives, raise participation, or lower how many the strategy leaves out, keeps or waits for"
        )
