"""Aggregation strategies: one algorithm per file, each with its paper and equation; pure, over NumPy arrays."""

from __future__ import annotations

from collections.abc import Collection

from host.aggregate import weighted_mean
from host.plugins.loading import Plugin
from host.strategies.base import Contribution, Stateless, Strategy, check_names
from host.strategies.fedadam import FedAdam
from host.strategies.fedavg import FedAvg
from host.strategies.fednova import FedNova
from host.strategies.fedprox import FedProx
from host.strategies.sections import FedAdamSection, FedNovaSection, FedProxSection, StrategySection
from host.strategies.user import UserStrategy

__all__ = [
    "Contribution",
    "FedAdam",
    "FedAvg",
    "FedNova",
    "FedProx",
    "Stateless",
    "Strategy",
    "UserStrategy",
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
    if isinstance(section, FedProxSection):
        return FedProx(section.mu)
    if isinstance(section, FedNovaSection):
        return FedNova(momentum, parameters)
    if isinstance(section, FedAdamSection):
        return FedAdam(section.learning_rate, section.beta1, section.beta2, section.tau, parameters)
    return FedAvg()
