"""Rounds without training, to time what a round takes beside it, an all-reduce, and the checks of contributions."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from csd_emu.util.deadline import Deadline
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import WATCHDOG_SECONDS, Bench, RunningDrives, array_of, bench_job
from csd_lab.bench.training.gloo import gloo_group
from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.losses.objective import ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array
from host.core.evaluation import Structure
from host.core.learning.judgement import Judgement
from host.core.tensor_sums import Scan
from host.fleet.fleet import Fleet
from host.training.accounting import make_accountant
from host.training.contributions import Refusal, ScreenedContribution
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
PLAIN = ObjectiveSpec(ShippedCode("cross_entropy"), ("image",), 1.0)


class NoopRounds:
    """Federated rounds of no epoch: one tensor goes out, comes back as it went, and is averaged.

    It is the `host.core.evaluation.WeightsJudge` of these rounds too, one that takes no time.
    """

    def __init__(
        self, fleet: Fleet, names: Sequence[str], elements: int, seed: int, screen: Screen | None = None
    ) -> None:
        """Use all drives of an array, and one tensor of so many float32; `screen` is that of a `RoundExchange`."""
        job = bench_job(seed).model_copy(update={"epochs": 0, "watchdog": WATCHDOG_SECONDS})
        frame = job_frame(job, ShippedCode("flat.py:Flat", _MODEL, {"elements": elements}), PLAIN)
        accountant = make_accountant(array_of("rounds", len(names), "native"))
        self._start = np.random.default_rng(seed).standard_normal(elements, np.float32)
        exchange = RoundExchange(job, frame, fleet, lambda: (), lambda *_: None)
        exchange.screen = screen or exchange.screen
        self._training = FederatedTraining(job, names, exchange, accountant, self)

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

    def evaluate(self, weights: Mapping[str, Array]) -> Judgement:
        """Judge nothing."""
        return Judgement(0.0, 0.0)


DEVICES = 8
NOOP_ROUNDS = 100
EXCHANGE_ELEMENTS, EXCHANGE_REPETITIONS = 10_000_000, 9


def bench_rounds(bench: Bench) -> BenchReport:
    """Cost of a round beside the training, and the exchange of weights beside an all-reduce.

    Do rounds without training on 8 native agents, mutual TLS on. Wall seconds.

    Figures: `noop_round_seconds_median`, a round with 4 KiB of weights; `exchange_over_gloo`, the median of rounds with
    one float32 tensor of 40 MB over that of gloo's all-reduce of as much on 9 ranks, taken in turns.
    """

    async def work(drives: RunningDrives) -> dict[str, list[float]]:
        bench.progress.stage(f"{NOOP_ROUNDS} rounds with {4 * ELEMENTS} bytes")
        noop = NoopRounds(drives.fleet, drives.names, ELEMENTS, bench.seed)
        await noop.warm_up()
        noop_seconds = [await noop.seconds() for _ in range(NOOP_ROUNDS)]
        return {"noop_round_seconds": noop_seconds} | await _interleaved(drives, bench)

    samples = bench.on_processes(DEVICES, work)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    figures = {
        "noop_round_seconds_median": medians["noop_round_seconds"],
        "exchange_over_gloo": medians["exchange_seconds"] / medians["gloo_seconds"],
    }
    return bench.report("wall", figures, dict(samples), "native")


async def _interleaved(drives: RunningDrives, bench: Bench) -> dict[str, list[float]]:
    bench.progress.stage(f"{4 * EXCHANGE_ELEMENTS} bytes by turns: a round, and gloo on {DEVICES + 1} ranks")
    samples: dict[str, list[float]] = {"exchange_seconds": [], "gloo_seconds": []}
    exchange = NoopRounds(drives.fleet, drives.names, EXCHANGE_ELEMENTS, bench.seed)
    async with gloo_group(DEVICES + 1, EXCHANGE_ELEMENTS, Deadline(WATCHDOG_SECONDS)) as gloo:
        await exchange.warm_up()
        for _ in range(WARM_UP_ROUNDS):
            await gloo.all_reduce_seconds()
        for number in range(EXCHANGE_REPETITIONS):
            samples["exchange_seconds"].append(await exchange.seconds())
            samples["gloo_seconds"].append(await gloo.all_reduce_seconds())
            bench.progress.advance((number + 1) / EXCHANGE_REPETITIONS)
    return samples


NOOP_PAIRS, EXCHANGE_PAIRS = 200, 25
_KINDS = {"noop": (ELEMENTS, NOOP_PAIRS), "exchange": (EXCHANGE_ELEMENTS, EXCHANGE_PAIRS)}


class NoScreen(Screen):
    """Looks at nothing and refuses nobody."""

    def scan(self, weights: Mapping[str, Array], start: Mapping[str, Array], buffers: Collection[str]) -> Scan:
        """Look at nothing."""
        return Scan()

    def weight_norm(self, weights: Mapping[str, Array]) -> float:
        """Look at nothing."""
        return math.inf

    def first_not_finite(self, weights: Mapping[str, Array]) -> str:
        """Look at nothing."""
        return ""

    def judge(self, parts: Sequence[ScreenedContribution], weight_norm: float = math.inf) -> dict[str, Refusal]:
        """Refuse nobody."""
        return {}


class Pair(NamedTuple):
    """A round with checks and one without: wall seconds, and processor seconds of the host's process."""

    checked: float
    unchecked: float
    checked_processor: float
    unchecked_processor: float


def bench_overhead(bench: Bench, quick: bool = False) -> BenchReport:
    """Cost per round of the checks of drives' contributions, all of them against none.

    Do rounds without training on 8 native agents, with the screen and without, in turns. Wall seconds.

    Figures: `noop_check_cost` and `exchange_check_cost`, what the checks add to a round with 4 KiB, and to one with one
    float32 tensor of 40 MB, as a share: the median over pairs of rounds, one of each, whose order changes from pair to
    pair; `check_cost`, the larger of both; `noop_seconds` and `exchange_seconds`, medians without checks; and for each
    share half the width of its 95 % interval; `noop_check_processor_seconds` and `exchange_check_processor_seconds`,
    what the checks take of the host's processor, which other load on the machine changes less. With `quick` a fifth of
    the pairs. In a round without training the norm of what is sent is looked at every time, where a training does so in
    its first round alone.
    """

    async def work(drives: RunningDrives) -> dict[str, list[Pair]]:
        samples = {}
        for kind, (elements, pairs) in _KINDS.items():
            bench.progress.stage(f"rounds with {4 * elements} bytes, checked and unchecked by turns")
            screens = (Screen(), NoScreen())
            on, off = (NoopRounds(drives.fleet, drives.names, elements, bench.seed, screen) for screen in screens)
            await on.warm_up()
            await off.warm_up()
            samples[kind] = await interleave(on, off, max(1, pairs // 5) if quick else pairs)
        return samples

    samples = bench.on_processes(DEVICES, work)
    raw = {
        f"{kind}_{name}_seconds": [getattr(pair, name) for pair in pairs]
        for kind, pairs in samples.items()
        for name in Pair._fields
    }
    return bench.report("wall", judge(samples), raw, "native")


async def interleave(on: NoopRounds, off: NoopRounds, pairs: int) -> list[Pair]:
    """Return pairs of rounds; which side comes first changes from pair to pair."""
    timed = []
    for number in range(pairs):
        order = (on, off) if number % 2 else (off, on)
        taken = {id(side): await _time(side) for side in order}
        (checked, checked_processor), (unchecked, unchecked_processor) = taken[id(on)], taken[id(off)]
        timed.append(Pair(checked, unchecked, checked_processor, unchecked_processor))
    return timed


async def _time(side: NoopRounds) -> tuple[float, float]:
    begin = time.process_time()
    wall = await side.seconds()
    return wall, time.process_time() - begin


def judge(samples: Mapping[str, Sequence[Pair]]) -> dict[str, float]:
    """Return the figures of pairs by kind of round."""
    figures: dict[str, float] = {}
    for kind, pairs in samples.items():
        shares = sorted(pair.checked / pair.unchecked - 1 for pair in pairs)
        figures[f"{kind}_check_cost"] = statistics.median(shares)
        figures[f"{kind}_check_cost_half_width"] = median_half_width(shares)
        figures[f"{kind}_seconds"] = statistics.median(pair.unchecked for pair in pairs)
        more = (pair.checked_processor - pair.unchecked_processor for pair in pairs)
        figures[f"{kind}_check_processor_seconds"] = statistics.median(more)
    return {"check_cost": max(figures[f"{kind}_check_cost"] for kind in samples)} | figures


def median_half_width(ordered: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of a median, from order statistics (binomial, taken as normal)."""
    count = len(ordered)
    reach = 0.98 * math.sqrt(count)
    low, high = math.floor(count / 2 - reach), math.ceil(count / 2 + reach)
    return (ordered[min(high, count - 1)] - ordered[max(low, 0)]) / 2
