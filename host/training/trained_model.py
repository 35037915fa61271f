"""Model of a run, as the host has it."""

from __future__ import annotations

from dataclasses import dataclass

from firmware_agent.common.slices import Array
from host.core.evaluation import Structure
from host.training.host_optimiser import HostOptimiser


@dataclass(frozen=True)
class TrainedModel:
    """A model, which of its tensors are what, and what steps it.

    Attributes:
        weights: parameters and buffers by name; trained parameters share their memory with the optimiser.
        structure: which of them are what.
        optimiser: of the parameters.
    """

    weights: dict[str, Array]
    structure: Structure
    optimiser: HostOptimiser
