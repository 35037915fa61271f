"""What tests of communication tuners share: a model, a predictor that is right or wrong, steps as they are seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import Costs, DriveTransfers, LayerCost, TensorCost
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_lab.generate.autobyte.tuner_scenario import make_slices
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.link_conditions import Conditions
from host.policies.transfer.transfer_tuner import Change, StepSeen, TransferTuner

COSTS: Costs = tuple(
    LayerCost(f"layer{number}", (TensorCost(f"layer{number}.weight", size),), 0.01, 0.02)
    for number, size in enumerate((40_000, 400_000, 1_600_000, 800_000))
)
LINK = SharedLink(1e8, 5e-4, 4e-4)
FIRST = TransferSettings("priority", 256 << 10, 1 << 20)


def seconds_of(sending: TransferSettings, bytes_per_second: float) -> float:
    """Step seconds of a made-up law: the best slice and credit grow with the bandwidth's square root."""
    assert sending.slice_bytes is not None
    assert sending.credit_bytes is not None
    away = math.log2(sending.slice_bytes / (6.4 * math.sqrt(bytes_per_second)))
    further = math.log2(sending.credit_bytes / (25.6 * math.sqrt(bytes_per_second)))
    return 1e8 / bytes_per_second * (1 + 0.05 * away**2 + 0.01 * further**2)


class Knowing:
    """A predictor that knows `seconds_of`, but for an error of its own."""

    name = "knowing"

    def __init__(self, error: Callable[[TransferSettings], float] = lambda sending: 0.0) -> None:
        self.asked = 0
        self.participants: list[int] = []
        self._error = error

    def log_seconds(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> npt.NDArray[np.float64]:
        self.asked += 1
        self.participants.append(conditions.participants)
        rate = conditions.link.bytes_per_second
        return np.array([math.log(seconds_of(each, rate)) + self._error(each) for each in settings])


def seen(
    step: int, sending: TransferSettings, seconds: float, bytes_per_second: float = 1e8, drives: int = 2
) -> StepSeen:
    """A step as a run tells it, without noise: of slices of three sizes, a round trip of 1 ms, 0.4 ms a slice."""
    slices = make_slices(drives / bytes_per_second, 1e-3, 4e-4, (4 << 10, 64 << 10, 1 << 20))
    return StepSeen(step, seconds, sending, (DriveTransfers(COSTS, slices),) * drives)


def drive(
    tuner: TransferTuner, bandwidths: Sequence[float], first: int = 1
) -> list[tuple[TransferSettings, Change | None]]:
    """Have a tuner go through steps of these bandwidths; the next step is announced before this one is observed."""
    passed = []
    announced = tuner.sending(first)
    for step, rate in enumerate(bandwidths, first):
        sending, announced = announced, tuner.sending(step + 1)
        passed.append((sending, tuner.observe(seen(step, sending, seconds_of(sending, rate), rate))))
    return passed
