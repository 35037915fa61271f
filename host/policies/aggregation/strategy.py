"""Protocol of a strategy: it makes new global weights of what the drives returned from a round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from firmware_agent.common.errors import CheckpointError, ConfigurationError
from firmware_agent.common.slices import Array
from host.core.tensor_sums import weighted_mean


@dataclass(frozen=True)
class Contribution:
    """What one drive adds to a round.

    Attributes:
        weights: name -> array, its weights after local training.
        samples: records that it trained on: its weight in the mean.
        steps: local optimiser steps that it took.
    """

    weights: Mapping[str, Array]
    samples: int
    steps: int


class Strategy(Protocol):
    """An aggregation algorithm with its own state. Sums run in float64 and in the order of the contributions.

    Only trained parameters are treated as the algorithm says. Everything else in a model, such as a batch norm's
    running mean, variance and counter, is no step of an optimiser: it is averaged by samples, and integers are rounded.
    """

    proximal: float
    """mu of the term mu/2 ||w - w_global||^2 that each drive adds to its loss; 0 for none."""
    least_contributions: int
    """With fewer there are no new weights: what the strategy promises, it promises from this number of drives on."""

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the new global weights; the inputs stay as they are.

        Args:
            global_weights: what the drives began the round with.
            contributions: one per drive that counts, `least_contributions` or more, in the array's order, all with the
                same names, shapes and dtypes.

        Raises:
            ConfigurationError: there are too few, or none has any samples.
        """

    def state(self) -> dict[str, Array]:
        """Return what must be kept between rounds beside the weights: tensors, in a checkpoint."""

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` returned.

        Raises:
            CheckpointError: it is not the state of this strategy.
        """


class Stateless:
    """A strategy that keeps nothing between rounds."""

    proximal = 0.0
    least_contributions = 1

    def state(self) -> dict[str, Array]:
        """Return nothing."""
        return {}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Take nothing (see `Strategy.load_state`)."""
        check_names(state, set())


def mean_of_buffers(contributions: Sequence[Contribution], parameters: Collection[str]) -> dict[str, Array]:
    """Return the mean, weighted by samples, of everything that is not a trained parameter."""
    return weighted_mean(
        [
            (part.samples, {name: array for name, array in part.weights.items() if name not in parameters})
            for part in contributions
        ]
    )


def check_count(strategy: Strategy, contributions: Sequence[Contribution]) -> None:
    """Return if there are as many contributions as `strategy` needs, and somebody trained on samples.

    Raises:
        ConfigurationError: there are not, or nobody did.
    """
    if len(contributions) < strategy.least_contributions or not any(part.samples > 0 for part in contributions):
        samples = sum(part.samples for part in contributions)
        raise ConfigurationError(
            f"cannot average {len(contributions)} contributions of {samples} samples; the strategy needs "
            f"{strategy.least_contributions}, and samples"
        )


def check_names(state: Mapping[str, Array], expected: set[str]) -> None:
    """Return if `state` holds exactly the `expected` tensors.

    Raises:
        CheckpointError: it does not.
    """
    if wrong := set(state) ^ expected:
        raise CheckpointError(
            f"the checkpoint's strategy state is not that of this strategy ({', '.join(sorted(wrong)[:3])}); "
            "resume with the job that wrote it"
        )
