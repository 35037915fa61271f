"""Names that users' strategies, tuners and tests import; each is loaded when it is first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firmware_agent.common.errors import ConfigurationError, CsdError
    from firmware_agent.common.slices import Array
    from host.app.pytest_plugin.csd_array import CsdArray
    from host.policies.aggregation import Contribution, FedAvg, Stateless, Strategy, weighted_mean
    from host.policies.batching import Batches, BatchTuner, FixedBatches, Floats, Retune, SpeedTable

__all__ = [
    "Array",
    "BatchTuner",
    "Batches",
    "ConfigurationError",
    "Contribution",
    "CsdArray",
    "CsdError",
    "FedAvg",
    "FixedBatches",
    "Floats",
    "Retune",
    "SpeedTable",
    "Stateless",
    "Strategy",
    "weighted_mean",
]

_AGGREGATION, _BATCHING, _ERRORS = "host.policies.aggregation", "host.policies.batching", "firmware_agent.common.errors"
_HOMES = {
    "Array": "firmware_agent.common.slices",
    "BatchTuner": _BATCHING,
    "Batches": _BATCHING,
    "ConfigurationError": _ERRORS,
    "Contribution": _AGGREGATION,
    "CsdError": _ERRORS,
    "CsdArray": "host.app.pytest_plugin.csd_array",
    "FedAvg": _AGGREGATION,
    "FixedBatches": _BATCHING,
    "Floats": _BATCHING,
    "Retune": _BATCHING,
    "SpeedTable": _BATCHING,
    "Stateless": _AGGREGATION,
    "Strategy": _AGGREGATION,
    "weighted_mean": _AGGREGATION,
}


def __getattr__(name: str) -> Any:
    """Return what `name` stands for.

    Raises:
        AttributeError: it stands for nothing.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)
