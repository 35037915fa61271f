"""Aggregation strategies: one algorithm per file, each with its paper and equation; pure, over NumPy arrays."""

from __future__ import annotations

from collections.abc import Collection

from host.strategies.base import Contribution, Strategy
from host.strategies.fedadam import FedAdam
from host.strategies.fedavg import FedAvg
from host.strategies.fednova import FedNova
from host.strategies.fedprox import FedProx
from host.strategies.sections import FedAdamSection, FedNovaSection, FedProxSection, StrategySection

__all__ = ["Contribution", "FedAdam", "FedAvg", "FedNova", "FedProx", "Strategy", "make_strategy"]


def make_strategy(section: StrategySection, momentum: float, parameters: Collection[str]) -> Strategy:
    """Return the strategy that a job file names, at its beginning.

    Args:
        section: of the job file.
        momentum: of SGD in the drives.
        parameters: names of the weights that are trained; all others are averaged by samples.
    """
    if isinstance(section, FedProxSection):
        return FedProx(section.mu)
    if isinstance(section, FedNovaSection):
        return FedNova(momentum, parameters)
    if isinstance(section, FedAdamSection):
        return FedAdam(section.learning_rate, section.beta1, section.beta2, section.tau, parameters)
    return FedAvg()
