"""Protocol of a strategy: it makes new global weights of what the drives returned from a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from firmware_agent.common.errors import CheckpointError, ConfigurationError
from firmware_agent.common.slices import Array
from host.core.learning.judgement import Judgement
from host.core.tensor_sums import weighted_mean


@dataclass(frozen=True)
class Contribution:
    """What one drive adds to a round.

    Attributes:
        weights: name -> array, its weights after local training; those that it did not return are as it got them.
        samples: its weight in the mean: records that it trained on, or of its shard where a client program trains.
        steps: local optimiser steps that it took.
        device: its name.
        tensors: name -> array, what a client program returned beside weights.
        metrics: name -> number, what it returned of these.
        loss: mean over the records that it trained on.
        seconds: phase -> device seconds.
        joules: that it took in the round.
        sent_bytes, received_bytes: host to drive, and drive to host.
        finish_seconds: from the round's beginning until the host had it, in the array's time.
    """

    weights: Mapping[str, Array]
    samples: int
    steps: int
    device: str = ""
    tensors: Mapping[str, Array] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    loss: float = math.nan
    seconds: Mapping[str, float] = field(default_factory=dict)
    joules: float = math.nan
    sent_bytes: int = 0
    received_bytes: int = 0
    finish_seconds: float = 0.0


@dataclass(frozen=True)
class DriveHistory:
    """What a strategy knows of a drive before a round.

    Attributes:
        device: its name.
        samples: records of its shard.
        chosen: whether the job's `participation` has chosen it for this round.
        rounds: in which its weights counted.
        seconds, joules, loss: device seconds, energy and mean loss of the last of them; NaN before.
    """

    device: str
    samples: int
    chosen: bool = True
    rounds: int = 0
    seconds: float = math.nan
    joules: float = math.nan
    loss: float = math.nan


@dataclass(frozen=True)
class FirstRound:
    """What a strategy may know before the first round.

    Attributes:
        devices: names of all drives, in the array's order.
        weights: name -> array, of the job's model at its beginning.
        rounds, seed: of the job.
        has_client: whether a client program trains.
        judge: returns what weights are worth on the held-out records.
    """

    devices: Sequence[str]
    weights: Mapping[str, Array]
    rounds: int
    seed: int
    has_client: bool
    judge: Callable[[Mapping[str, Array]], Judgement]


OPTIONAL_METHODS = {"first_weights": 1, "configure": 2, "exchange": 3, "evaluate": 2, "round_seconds": 1}
"""What a strategy may have beside the methods of the protocol -> how many arguments it takes."""


class Strategy(Protocol):
    """An aggregation algorithm with its own state. Sums run in float64 and in the order of the contributions.

    It may have ``configure(round, drives)``, of drive -> `DriveHistory`, which returns drive -> what is said to it:
    name -> number, text or array. Nobody else is asked. ``epochs``, ``batch_size`` and ``learning_rate`` count in any
    drive, all else is for a client program; ``client`` names the one that it needs. It may have
    ``evaluate(round, weights)``, which returns name -> number, and ``first_weights(start)``, of `FirstRound`, which
    returns the weights of the first round. ``exchange(round, number, tensors)``, of drive -> name -> array, returns the
    same for all these drives: the answer to exchange 1, 2, ... that their client programs ask for within a round. With
    ``round_seconds(finish_seconds)``, of drive -> when it is done, it says how long a round takes, in which drives may
    be at work beyond its end.

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


class PlainStrategy:
    """What most strategies have: drives are not held near the global weights, and one of them is enough."""

    proximal = 0.0
    least_contributions = 1


class Stateless(PlainStrategy):
    """A strategy that keeps nothing between rounds."""

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
