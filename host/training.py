"""What a run asks of a training, whatever its mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from firmware_agent.exchange import Array
from host.job import JobConfig
from host.records import DeviceRound, RoundRecord


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


def is_done(job: JobConfig, rounds: int, accuracy: float) -> bool:
    """Return whether a job has ended after that many `rounds`, the last of which gave this `accuracy`."""
    return rounds >= job.rounds or (rounds > 0 and job.target is not None and accuracy >= job.target.accuracy)


class Training(Protocol):
    """A job on the nodes of an array, round by round; one instance per run."""

    @property
    def weights(self) -> Mapping[str, Array]:
        """Name -> array, as they are now."""

    @property
    def done(self) -> bool:
        """Whether the target is reached, or the rounds are done."""

    async def run_round(self) -> RoundRecord:
        """Train one more round.

        Raises:
            DeviceLost: no device is left.
            DeviceFailed: no device could do its task, and one said why.
        """

    def state(self) -> TrainingState:
        """Return where the training stands; the arrays are not copied, so take them before the next round."""

    def restore(self, state: TrainingState) -> None:
        """Go on from `state`.

        Raises:
            CheckpointError: it is of another job.
        """


def round_totals(parts: Sequence[DeviceRound]) -> dict[str, Any]:
    """Return a round's figures over its devices, by the names of `RoundRecord`: what came too late does not count."""
    counted = [part for part in parts if not part.straggler]
    samples = sum(part.samples for part in counted)
    seconds = [part.device_seconds.total for part in counted]
    return {
        "clock": "+".join(sorted({part.clock for part in parts})),
        "train_loss": _mean_loss(counted, samples) if counted else math.nan,
        "images_per_device_second": samples / sum(seconds) if any(seconds) else 0.0,
        "slowest_device_seconds": max(seconds, default=0.0),
    }


def _mean_loss(parts: Sequence[DeviceRound], samples: int) -> float:
    return sum(part.loss * part.samples for part in parts) / samples if samples else 0.0
