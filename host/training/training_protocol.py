"""Protocol of a training, whatever its mode, as a run uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from firmware_agent.common.slices import Array
from host.config.job_file import JobConfig
from host.core.records import DeviceRound, RoundRecord, in_time
from host.core.states.training_state import TrainingState


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

    @property
    def cut_short(self) -> bool:
        """Whether the last round ended before its last step, for a pause was asked for."""

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
    counted = in_time(parts)
    samples = sum(part.samples for part in counted)
    seconds = [part.device_seconds.total for part in counted]
    return {
        "clock": "+".join(sorted({part.clock for part in parts})),
        "train_loss": sum(part.loss * part.samples for part in counted) / max(1, samples) if counted else math.nan,
        "records_per_device_second": samples / sum(seconds) if any(seconds) else 0.0,
        "slowest_device_seconds": max(seconds, default=0.0),
    }


def with_service(
    parts: Sequence[DeviceRound], take_figures: Callable[[str], ServiceFigures | None]
) -> list[DeviceRound]:
    """Return the parts with what their drives did for their host, which is taken drive by drive."""
    return [msgspec.structs.replace(part, service=take_figures(part.device)) for part in parts]
