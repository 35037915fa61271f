"""Model of a run, as the host has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firmware_agent.common.slices import Array
from host.core.evaluation import NormSum, Structure
from host.training.host_optimiser import HostOptimiser


@dataclass(frozen=True)
class TrainedModel:
    """A model, which of its tensors are what, and what steps it.

    Attributes:
        weights: parameters and buffers by name; trained parameters share their memory with the optimiser.
        structure: which of them are what.
        optimiser: of the parameters.
        sums: that the devices add up in a step, with batch normalisation over all of them; none otherwise.
    """

    weights: dict[str, Array]
    structure: Structure
    optimiser: HostOptimiser
    sums: Sequence[NormSum] = ()

    def copy_tied(self) -> None:
        """Have tied parameters under their further names be what they are under their first."""
        for name, first in self.structure.tied.items():
            self.weights[name][...] = self.weights[first]
