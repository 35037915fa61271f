"""Protocol of a transfer tuner, what a run tells it about each step, and the tuner that a schedule names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from csd_emu.perfmodel.overlap.layer_work import DriveTransfers
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES
from firmware_agent.common.errors import ConfigurationError, DeviceError
from firmware_agent.common.send_queue import TransferSettings
from host.config.plugins.kinds import TRANSFER_TUNER
from host.config.plugins.plugin_section import accepted

# Step k+1 is announced before step k has ended, but its gradients leave later, and those of its weights that wait are
# cut anew: what is learnt from step k holds from its end on.
LEAST_AHEAD_STEPS = 1


@dataclass(frozen=True)
class StepSeen:
    """What the host measured of one step.

    Attributes:
        step: its number, from 1.
        step_seconds: from its first forward pass to the next step's, of the slowest participant.
        sending: what it was sent with.
        drives: that took part.
    """

    step: int
    step_seconds: float
    sending: TransferSettings
    drives: tuple[DriveTransfers, ...]


@dataclass(frozen=True)
class Change:
    """Another setting, announced.

    Attributes:
        step: the first one that is sent with it; it may be announced already, by other settings.
        sending: the setting.
        reason: for people.
        gain: log of expected step seconds with the present setting over those with this one; NaN if nobody knows.
    """

    step: int
    sending: TransferSettings
    reason: str
    gain: float = math.nan


class TransferTuner(Protocol):
    """Decides on `TransferSettings` while a run goes on. It is asked and told in the order of the steps."""

    learns: bool
    """Whether it needs steps whose slices cross while drives compute."""

    def sending(self, step: int) -> TransferSettings:
        """Return the setting of a step, from 1; of one that was asked for already the same, but for a `Change`."""

    def observe(self, seen: StepSeen) -> Change | None:
        """Take what a step cost; return the change that it leads to, which `sending` then knows, or None.

        Raises:
            DeviceError: a figure is one that no step has; nothing has changed.
        """

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON can hold it."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            CheckpointError: it is not the state of this tuner.
        """


class FixedSending:
    """A `TransferTuner` that never changes anything."""

    learns = False

    def __init__(self, first: TransferSettings) -> None:
        """Keep the setting."""
        self._sending = first

    def sending(self, step: int) -> TransferSettings:
        """Return the setting."""
        return self._sending

    def observe(self, seen: StepSeen) -> Change | None:
        """Check the figures; return None."""
        check_seen(seen)
        return None

    def state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


@TRANSFER_TUNER.register("fifo", "Whole tensors, as they become ready.")
class WholeTensors(FixedSending):
    """Whole tensors without a limit."""

    def __init__(self) -> None:
        """Take nothing."""
        super().__init__(TransferSettings())


@TRANSFER_TUNER.register("priority", "Slices, those first that the next forward pass needs first.")
class FixedSlices(FixedSending):
    """Slices of one size, with one credit: those of the first setting."""


def check_seen(seen: StepSeen) -> None:
    """Refuse figures that no step has.

    Raises:
        DeviceError: a step took no time or for ever, nobody took part, or a slice has no size or ends before it begins.
    """
    what = f"step {seen.step} of {len(seen.drives)} drives that took {seen.step_seconds:g} s"
    if seen.step < 1 or not seen.drives or not 0 < seen.step_seconds < math.inf:
        raise DeviceError(f"{what}: a step has a number from 1, at least one participant, and takes time")
    for number, drive in enumerate(seen.drives):
        push, size, begin, end = drive.slices.T
        if not (np.isfinite(drive.slices).all() and np.isin(push, (0, 1)).all() and (size > 0).all()):
            raise DeviceError(f"{what}: drive {number} has a slice that is no slice; measure it anew")
        if (end < begin).any():
            raise DeviceError(f"{what}: drive {number} has a slice that ends before it begins; measure it anew")


def check_tunable(sending: TransferSettings) -> None:
    """Refuse a setting that a tuner cannot begin with.

    Raises:
        ConfigurationError: it has no slices or no credit.
    """
    if sending.slice_bytes is None or sending.credit_bytes is None:
        raise ConfigurationError("a tuner needs a slice size and a credit to begin with; give both")


def make_tuner(
    schedule: str,
    first: TransferSettings,
    seed: int = 0,
    block_bytes: int = BLOCK_BYTES,
    predictor: str = "model",
) -> TransferTuner:
    """Return the tuner, which takes of the other arguments what its constructor names.

    Args:
        schedule: its name, as a job file has it.
        first: the setting that the run begins with.
        seed: of a tuner that draws random numbers.
        block_bytes: the host steps ranges of so many bytes.
        predictor: the job's communication.predictor.

    Raises:
        ConfigurationError: a tuner cannot begin with `first`, or the name is not known.
    """
    kind = TRANSFER_TUNER.load(schedule)
    given = {"first": first, "seed": seed, "block_bytes": block_bytes, "predictor": predictor}
    tuner: TransferTuner = kind(**accepted(kind, given))
    return tuner
