"""State of a training, as a checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firmware_agent.common.errors import CheckpointError
from firmware_agent.common.slices import Array, tensor_specs


@dataclass(frozen=True)
class TrainingState:
    """All that a training needs to go on as if it had never stopped; every draw comes from seed and round.

    Attributes:
        round: rounds done.
        accuracy: after the last of them, 0 to 1.
        array_seconds: the array's composed time.
        weights: name -> array, the global weights.
        strategy: the strategy's, or optimiser's, own tensors.
        progress: of a synchronous run, where it stands beside all that; what JSON can hold.
    """

    round: int
    accuracy: float
    array_seconds: float
    weights: Mapping[str, Array]
    strategy: Mapping[str, Array]
    progress: Mapping[str, Any] = field(default_factory=dict)

    def weights_like(self, model: Mapping[str, Array]) -> dict[str, Array]:
        """Return the weights in the order of a model's weights and buffers: a file may give them in any.

        Raises:
            CheckpointError: they are of another model.
        """
        weights = {name: self.weights[name] for name in model if name in self.weights}
        if len(weights) != len(self.weights) or tensor_specs(weights) != tensor_specs(model):
            raise CheckpointError("the checkpoint's weights are not those of the model; resume with what wrote it")
        return weights
