"""Protocol of a tuner. Devices are numbered in participant order; arrays are as long as there are devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Batches = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Retune:
    """New batch sizes, for all devices from one step on.

    Attributes:
        batches: (devices,) records per step; 0 parks a device.
        changed: numbers of the devices whose batch changes.
        slowdowns: (devices,) observed over expected seconds of the same batch, as the tuner now believes.
        reason: for people: which devices, how much slower or faster, since which step.
        gain_steps: what it is expected to win over the remaining steps, in steps of the present length.
    """

    batches: Batches
    changed: tuple[int, ...]
    slowdowns: Floats
    reason: str
    gain_steps: float


class BatchTuner(Protocol):
    """Decides on batch sizes while a run goes on."""

    @property
    def batches(self) -> Batches:
        """(devices,) records per step as of now; 0 for a device that is parked or gone."""

    @property
    def slowdowns(self) -> Floats:
        """(devices,) observed over expected seconds of the same batch, as believed now; 1 is as fast as the table."""

    def probes(self, step: int) -> Batches:
        """Return (devices,) records that parked devices should compute beside this step, to be seen when they recover.

        Nobody waits for them, and their gradients are dropped; `observe` takes their seconds.
        """

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        """Take what a step cost, and return new batches if they are worth it.

        Args:
            step: its number, from 1.
            compute_seconds: (devices,) device seconds in which each computed its present batch (forward, backward,
                encoding); NaN for a device that returned nothing.
            steps_left: of the run, if batches stay; None for as many as the tuner was made with.

        Returns:
            A retune that is in force from the next step on (`batches` are the new ones already), or None.
        """

    def leave(self, device: int) -> Retune:
        """Remove a device; the others keep their batches, and the step continues without it."""

    def join(self, device: int) -> Retune:
        """Note that a device is back, its speed taken for the table's until it is observed."""

    def possible_records_per_second(self) -> float:
        """Return what the tables, scaled by the believed slowdowns, allow with the batches that it may choose."""

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON can hold it."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""


@dataclass(frozen=True)
class StepCost:
    """What a step cost the whole array.

    Attributes:
        records: node -> how many of its records are in the step's gradient; without those that had none.
        compute_seconds: node -> device seconds in which it computed them.
        array_seconds: of the step.
        joules: node -> energy, of the host and of every drive that is powered.
        missing: nodes that were late, lost, or whose task failed.
        noise_records: the gradient noise scale as of this step; None if it is not known.
    """

    records: Mapping[str, int]
    compute_seconds: Mapping[str, float]
    array_seconds: float
    joules: Mapping[str, float]
    missing: frozenset[str] = frozenset()
    noise_records: float | None = None


@runtime_checkable
class DeviceSelector(Protocol):
    """What a tuner has beside `BatchTuner`'s methods if it also decides who takes part."""

    @property
    def resting(self) -> frozenset[int]:
        """Devices that take no part any more, so that nobody sees their private records."""

    @property
    def is_deciding(self) -> bool:
        """Whether who trains is to be decided, or to be looked at again."""

    @property
    def is_computing(self) -> bool:
        """Whether `begin` or `BatchTuner.observe` may take seconds."""

    def begin(self) -> None:
        """Think about the first step, unless that was done or restored."""

    def meet(self, here: Collection[int]) -> None:
        """Take the devices that are present, before `leave` and `join` for each, so that it decides once for all."""

    def telling_later(self) -> AbstractContextManager[None]:
        """Keep what people are told inside the block for its end: inside, another thread may think."""

    def watch(self, cost: StepCost) -> None:
        """Take what a step cost the whole array, before `BatchTuner.observe` of the same step."""
