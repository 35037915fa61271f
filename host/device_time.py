"""What a device's seconds are: the guest's counted ones scaled by its profile, modelled ones, or the wall's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from csd_emu.profiles import Profile
from firmware_agent.wire import PhaseSeconds

COUNTED, MODELLED, WALL = "counted", "modelled", "wall"
# A competing task's weight is given against this one of the trainer.
TRAINER_WEIGHT = 100


class StepModel(Protocol):
    """A calibration table, as far as it is needed here."""

    def step_seconds(self, batch_size: int) -> PhaseSeconds:
        """Return the reference core's seconds of one step at this batch size, per phase."""

    @property
    def encode_seconds(self) -> float:
        """The reference core's seconds of taking the weights out."""


class DeviceTime:
    """Turns what a device's stopwatch saw into seconds of its profile."""

    def __init__(self, profiles: Mapping[str, Profile], model: StepModel | None) -> None:
        """Take the profile of each device, and the table from which devices without a counted clock are modelled.

        Without a table the seconds of such a device are the wall's.
        """
        self._profiles, self._model = profiles, model
        self._competitors: dict[str, int] = {}

    def clock(self, hello_clock: str) -> str:
        """Return the clock that the seconds of a device with this stopwatch will have."""
        return MODELLED if hello_clock == WALL and self._model is not None else hello_clock

    def set_competitor(self, device: str, weight: int) -> None:
        """Note that a task of this cgroup weight competes with the trainer; 0 ends it. Only a model needs to know."""
        self._competitors[device] = weight

    def seconds(
        self, device: str, hello_clock: str, measured: PhaseSeconds, batches: Mapping[int, int]
    ) -> PhaseSeconds:
        """Return the device's seconds of a pass.

        Args:
            device: its name.
            hello_clock: what its stopwatch shows.
            measured: what the stopwatch saw, seconds per phase.
            batches: batch size -> number of steps of that size.
        """
        profile = self._profiles[device]
        if self.clock(hello_clock) == MODELLED and self._model is not None:
            share = (TRAINER_WEIGHT + self._competitors.get(device, 0)) / TRAINER_WEIGHT
            return profile.device_seconds(_modelled(self._model, batches, share))
        return profile.device_seconds(measured) if hello_clock == COUNTED else measured


def batch_counts(samples: int, epochs: int, batch_size: int) -> dict[int, int]:
    """Return batch size -> steps for `samples` records, repetitions counted, in `epochs` equal passes."""
    full, rest = divmod(samples // max(1, epochs), batch_size)
    counts = {batch_size: full * epochs, rest: epochs}
    return {size: steps for size, steps in counts.items() if size and steps}


def _modelled(model: StepModel, batches: Mapping[int, int], share: float) -> PhaseSeconds:
    sums = dict.fromkeys(PhaseSeconds.__struct_fields__, 0.0)
    for batch_size, steps in batches.items():
        step = model.step_seconds(batch_size)
        for phase in sums:
            sums[phase] += steps * share * getattr(step, phase)
    sums["encode"] += share * model.encode_seconds
    return PhaseSeconds(**sums)
