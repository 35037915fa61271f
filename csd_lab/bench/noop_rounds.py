"""Rounds without training, to time what a round takes beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from csd_lab.bench.harness import WATCHDOG_SECONDS, array_of, bench_job
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.models import ModelSpec
from firmware_agent.common.slices import Array
from host.core.evaluation import Structure
from host.fleet.fleet import Fleet
from host.training.accounting import make_accountant
from host.training.federated import FederatedTraining
from host.training.round_exchange import RoundExchange, job_frame
from host.training.screening import Screen

# One float32 tensor of 4 KiB.
ELEMENTS = 1024
WARM_UP_ROUNDS = 3
_TENSOR = "values"
_MODEL = """
import torch

class Flat(torch.nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(elements))
"""


class NoopRounds:
    """Federated rounds of no epoch: one tensor goes out, comes back as it went, and is averaged.

    It is the `host.core.evaluation.WeightsJudge` of these rounds too, one that takes no time.
    """

    def __init__(
        self, fleet: Fleet, names: Sequence[str], elements: int, seed: int, screen: Screen | None = None
    ) -> None:
        """Use all drives of an array, and one tensor of so many float32; `screen` is that of a `RoundExchange`."""
        job = bench_job(seed).model_copy(update={"epochs": 0, "watchdog": WATCHDOG_SECONDS})
        frame = job_frame(job, ModelSpec("flat.py:Flat", _MODEL, {"elements": elements}), 1.0)
        accountant = make_accountant(array_of("rounds", len(names), "native"))
        self._start = np.random.default_rng(seed).standard_normal(elements, np.float32)
        exchange = RoundExchange(job, frame, fleet, lambda: (), lambda *_: None, screen=screen)
        self._training = FederatedTraining(job, names, exchange, accountant, self, lambda *_: None)

    async def warm_up(self) -> None:
        """Have the drives build the model, and take everything into use once."""
        for _ in range(WARM_UP_ROUNDS):
            await self.seconds()

    async def seconds(self) -> float:
        """Return wall seconds of one round, from the host's beginning to the mean being there and recorded.

        Raises:
            ProtocolError: a drive is missing, or the weights are not those that went out.
        """
        record = await self._training.run_round()
        # Equal shares are exact, or as good as that in float64, so even the mean must be the same float32.
        if record.lost or not np.array_equal(self._training.weights[_TENSOR], self._start):
            raise ProtocolError(f"round {record.round} without training changed the weights, or lost {record.lost}")
        return record.wall_seconds

    def initial_weights(self) -> dict[str, Array]:
        """Return the one tensor."""
        return {_TENSOR: self._start.copy()}

    def structure(self) -> Structure:
        """Return that it is a parameter."""
        return Structure((_TENSOR,), (), {})

    def evaluate(self, weights: Mapping[str, Array]) -> tuple[float, float]:
        """Judge nothing."""
        return 0.0, 0.0
