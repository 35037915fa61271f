"""What a tuner asks: how much faster would a step be with another setting? And the answer of the analytic model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from csd_emu.communication.analytic import predict_step_seconds
from firmware_agent.send_queue import Sending
from host.communication.conditions import Conditions

Floats = npt.NDArray[np.float64]


class Predictor(Protocol):
    """Knows how settings compare."""

    name: str

    def log_seconds(self, conditions: Conditions, settings: Sequence[Sending]) -> Floats:
        """Return (settings,) log of step seconds, less a constant that all of them share.

        So the difference of two is the log of one's speed-up over the other.
        """


class AnalyticPredictor:
    """The closed form of `csd_emu.communication.analytic`: the honest baseline of anything that was trained."""

    name = "analytic"

    def log_seconds(self, conditions: Conditions, settings: Sequence[Sending]) -> Floats:
        """See `Predictor`."""
        costs = [conditions.costs] * conditions.participants
        seconds: Floats = np.array([predict_step_seconds(costs, conditions.link, each) for each in settings])
        return np.log(seconds)
