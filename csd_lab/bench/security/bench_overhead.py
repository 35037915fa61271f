"""Cost per round of the checks of drives' contributions, all of them against none."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, RunningDrives
from csd_lab.bench.noop_rounds import ELEMENTS, NoopRounds
from csd_lab.bench.training.bench_rounds import DEVICES, EXCHANGE_ELEMENTS
from firmware_agent.common.slices import Array
from host.core.scanning import Scan
from host.training.contributions import Refusal, ScreenedContribution
from host.training.screening import Screen

NOOP_PAIRS, EXCHANGE_PAIRS = 200, 25
_KINDS = {"noop": (ELEMENTS, NOOP_PAIRS), "exchange": (EXCHANGE_ELEMENTS, EXCHANGE_PAIRS)}


class NoScreen(Screen):
    """Looks at nothing and refuses nobody."""

    def scan(self, weights: Mapping[str, Array], start: Mapping[str, Array], buffers: Collection[str]) -> Scan:
        """Look at nothing."""
        return Scan(0.0)

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


class TimedWork(Protocol):
    """What can be timed."""

    async def seconds(self) -> float:
        """Return wall seconds of one round."""


def run(bench: Bench, quick: bool = False) -> BenchReport:
    """Do rounds without training on 8 native agents, with the screen and without, in turns. Wall seconds.

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


async def interleave(on: TimedWork, off: TimedWork, pairs: int) -> list[Pair]:
    """Return pairs of rounds; which side comes first changes from pair to pair."""
    timed = []
    for number in range(pairs):
        order = (on, off) if number % 2 else (off, on)
        taken = {id(side): await _time(side) for side in order}
        (checked, checked_processor), (unchecked, unchecked_processor) = taken[id(on)], taken[id(off)]
        timed.append(Pair(checked, unchecked, checked_processor, unchecked_processor))
    return timed


async def _time(side: TimedWork) -> tuple[float, float]:
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
