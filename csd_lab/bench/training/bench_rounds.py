"""Cost of a round beside the training, and the exchange of weights beside an all-reduce."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import numpy as np

from csd_emu.engines import Engine, make_engine
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import WATCHDOG_SECONDS, bench_config, bench_job, report
from csd_lab.bench.training.gloo import gloo_group
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.models import ModelSpec
from firmware_agent.common.slices import Array
from host.config.job_file import DEFAULT_DATA
from host.core.evaluation import Structure
from host.fleet.lifecycle import ArrayRequest, StartedArray
from host.fleet.temporary_array import run_on_engine
from host.training.accounting import make_accountant
from host.training.federated import FederatedTraining
from host.training.round_exchange import RoundExchange, job_frame
from host.training.screening import Screen

DEVICES = 8
NOOP_ELEMENTS, NOOP_ROUNDS = 1024, 100
EXCHANGE_ELEMENTS, EXCHANGE_REPETITIONS = 10_000_000, 9
WARM_UP_ROUNDS = 3
_MODEL = """
import torch

class Flat(torch.nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(elements))
"""


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Do rounds without training on 8 native agents, mutual TLS on. Wall seconds.

    Figures: `noop_round_seconds_median`, a round with 4 KiB of weights; `exchange_over_gloo`, the median of rounds with
    one float32 tensor of 40 MB over that of gloo's all-reduce of as much on 9 ranks, taken in turns.
    """
    config = bench_config("rounds", DEVICES, "native")

    async def work(started: StartedArray, _: Engine) -> dict[str, list[float]]:
        progress.stage(f"{NOOP_ROUNDS} rounds with {4 * NOOP_ELEMENTS} bytes")
        noop = NoopRounds(started, NOOP_ELEMENTS, seed)
        await noop.warm_up()
        noop_seconds = [await noop.seconds() for _ in range(NOOP_ROUNDS)]
        return {"noop_round_seconds": noop_seconds} | await _interleaved(started, progress, seed)

    request = ArrayRequest(config, DEFAULT_DATA, seed)
    samples = run_on_engine(make_engine(config, paths), request, paths, progress, work)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    figures = {
        "noop_round_seconds_median": medians["noop_round_seconds"],
        "exchange_over_gloo": medians["exchange_seconds"] / medians["gloo_seconds"],
    }
    return report("rounds", "wall", seed, figures, dict(samples), "native")


async def _interleaved(started: StartedArray, progress: Progress, seed: int) -> dict[str, list[float]]:
    progress.stage(f"{4 * EXCHANGE_ELEMENTS} bytes by turns: a round, and gloo on {DEVICES + 1} ranks")
    samples: dict[str, list[float]] = {"exchange_seconds": [], "gloo_seconds": []}
    exchange = NoopRounds(started, EXCHANGE_ELEMENTS, seed)
    async with gloo_group(DEVICES + 1, EXCHANGE_ELEMENTS, Deadline(WATCHDOG_SECONDS)) as gloo:
        await exchange.warm_up()
        for _ in range(WARM_UP_ROUNDS):
            await gloo.all_reduce_seconds()
        for number in range(EXCHANGE_REPETITIONS):
            samples["exchange_seconds"].append(await exchange.seconds())
            samples["gloo_seconds"].append(await gloo.all_reduce_seconds())
            progress.advance((number + 1) / EXCHANGE_REPETITIONS)
    return samples


class NoopRounds:
    """Rounds without training: weights go out, come back as they went, and are averaged."""

    def __init__(self, started: StartedArray, elements: int, seed: int, screen: Screen | None = None) -> None:
        """Use all drives of an array, and one tensor of so many float32; `screen` is that of a `RoundExchange`."""
        job = bench_job(seed).model_copy(update={"epochs": 0})
        frame = job_frame(job, ModelSpec("flat.py:Flat", _MODEL, {"elements": elements}), 1.0)
        names = [device.name for device in started.state.devices]
        accountant = make_accountant(bench_config("rounds", len(names), "native"))
        self._start = np.random.default_rng(seed).standard_normal(elements, np.float32)
        exchange = RoundExchange(job, frame, started.fleet, lambda: (), lambda *_: None)
        exchange.screen = screen or exchange.screen
        judge = _Unjudged(self._start)
        self._training = FederatedTraining(job, names, exchange, accountant, judge)

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
        # Eight equal shares are exact, so even the mean must be the same to the bit.
        if record.lost or not np.array_equal(self._training.weights["values"], self._start):
            raise ProtocolError(f"round {record.round} without training changed the weights, or lost {record.lost}")
        return record.wall_seconds


class _Unjudged:
    """A `host.core.evaluation.WeightsJudge` that takes no time."""

    def __init__(self, values: Array) -> None:
        self._values = values

    def initial_weights(self) -> dict[str, Array]:
        """Return the one tensor."""
        return {"values": self._values.copy()}

    def structure(self) -> Structure:
        """Return that it is a parameter."""
        return Structure(("values",), (), {})

    def evaluate(self, weights: Mapping[str, Array]) -> tuple[float, float]:
        """Judge nothing."""
        return 0.0, 0.0
