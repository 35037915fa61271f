"""Aggregation strategies: one algorithm per file, each with its paper and equation; pure, over NumPy arrays."""

from __future__ import annotations

from collections.abc import Collection

from firmware_agent.errors import ConfigurationError
from host.aggregate import weighted_mean
from host.plugins.loading import Plugin
from host.plugins.section import UserSection
from host.strategies.base import Contribution, Stateless, Strategy, check_names
from host.strategies.clipping import Clipped
from host.strategies.coordinatewise import Median, TrimmedMean
from host.strategies.direction import Directions
from host.strategies.fedadam import FedAdam
from host.strategies.fedavg import FedAvg
from host.strategies.fednova import FedNova
from host.strategies.fedprox import FedProx
from host.strategies.krum import Krum
from host.strategies.sections import (
    FedAdamSection,
    FedNovaSection,
    FedProxSection,
    KrumSection,
    MedianSection,
    MultiKrumSection,
    StrategySection,
    TrimmedMeanSection,
)
from host.strategies.user import UserStrategy

__all__ = [
    "Clipped",
    "Contribution",
    "Directions",
    "FedAdam",
    "FedAvg",
    "FedNova",
    "FedProx",
    "Krum",
    "Median",
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
    strategy = _make_built_in(section, momentum, parameters)
    bound = None if isinstance(section, UserSection) else section.update_norm
    return strategy if bound is None else Clipped(strategy, bound, parameters)


def check_drives(strategy: Strategy, name: str, drives: int) -> None:
    """Return if rounds of so many `drives` are enough for the `strategy` that a job file calls `name`.

    Raises:
        ConfigurationError: they are not.
    """
    if drives < strategy.least_contributions:
        raise ConfigurationError(
            f"strategy {name}: needs the weights of {strategy.least_contributions} drives in a round, and {drives} "
            "take part; add drives, raise participation, or lower how many the strategy leaves out or keeps"
        )


def _make_built_in(section: StrategySection, momentum: float, parameters: Collection[str]) -> Strategy:
    if isinstance(section, FedProxSection):
        return FedProx(section.mu)
    if isinstance(section, FedNovaSection):
        return FedNova(momentum, parameters)
    if isinstance(section, FedAdamSection):
        return FedAdam(section.learning_rate, section.beta1, section.beta2, section.tau, parameters)
    if isinstance(section, MedianSection):
        return Median()
    if isinstance(section, TrimmedMeanSection):
        return TrimmedMean(section.discard)
    if isinstance(section, KrumSection):
        return Krum(section.hostile, 1, parameters)
    if isinstance(section, MultiKrumSection):
        return Krum(section.hostile, section.keep, parameters)
    return FedAvg()
