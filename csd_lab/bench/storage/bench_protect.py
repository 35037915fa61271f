"""The policy `protect`: seconds that keep the limit, and training's rate over the best that keeps as many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from csd_emu.perfmodel.flash.flash_drive import FAIR, HOST_FIRST
from csd_emu.perfmodel.flash.flash_queues import Integers
from csd_emu.perfmodel.storage.latency_throttle import INTERVAL_NS, LatencyThrottle
from csd_lab.bench.storage.protect_world import PROTECT_KINDS, ProtectCase, ServiceOutcome, draw_protect_case

# Kinds of load and policy; with the host first, neither writes nor large blocks suffer from training's reads.
CASES = tuple((kind, FAIR) for kind in PROTECT_KINDS) + tuple((kind, HOST_FIRST) for kind in PROTECT_KINDS[:3])
# Seeds 9101 and 9201 were run, and are used up.
DEVELOPMENT_SEEDS, FINAL_SEEDS = (1,), (9301,)
# Training unthrottled must raise the 99th percentile by so much, or there is nothing to protect.
LEAST_EFFECT = 1.04
SECONDS, QUICK_SECONDS, HALVINGS = 20, 8, 5


def play_protect(chosen: tuple[str, str, int, int]) -> dict[str, Any] | None:
    """Return what came of a case, by kind, policy, seed and seconds; None if it has nothing to protect."""
    case, place = draw_protect_case(*chosen)
    most = case.training.most_bytes_per_second
    alone, free = case.serve(None, trains=False), case.serve(None)
    low, high = float(alone.p99_seconds.max()), float(np.quantile(free.p99_seconds, 0.75))
    if high < LEAST_EFFECT * low:
        return None
    limit = low * (high / low) ** place
    throttled = case.serve(LatencyThrottle(limit, most))
    broken = int((throttled.p99_seconds > limit).sum())
    constant, best = best_rates(case, lambda outcome: int((outcome.p99_seconds > limit).sum()) <= broken)
    best = max(best, throttled.trained_bytes)  # what no such rate reaches can be reached
    return {
        "kind": case.kind,
        "policy": case.policy,
        "seed": case.seed,
        "limit_seconds": limit,
        "kept": 1 - broken / case.seconds,
        "kept_unthrottled": float((free.p99_seconds <= limit).mean()),
        "rate": throttled.trained_bytes / max(best, 1),
        "rate_over_constant": throttled.trained_bytes / max(constant, 1),
        "unthrottled_rate": free.trained_bytes / max(best, 1),
    }


class PlannedRates:
    """A `ReadThrottle` that knows the load: the engine's rate follows from the time."""

    interval_ns, silent = INTERVAL_NS, False

    def __init__(self, rate_at: Callable[[int], float]) -> None:
        """Begin with the rate at 0 ns."""
        self._rate_at, self.bytes_per_second = rate_at, rate_at(0)

    def observe(self, now_ns: int, latency_ns: Integers) -> None:
        """Take the rate of the interval that begins."""
        self.bytes_per_second = self._rate_at(now_ns)

    def wake(self) -> None:
        """Do nothing: silence was planned."""

    def state(self) -> list[float]:
        """Return nothing: it depends on the time alone."""
        return []

    def restore(self, state: list[float]) -> None:
        """Do nothing, for the same reason."""


def best_rates(case: ProtectCase, keeps: Callable[[ServiceOutcome], bool]) -> tuple[float, float]:
    """Return the most bytes trained of one rate for all the time, and of one for each level of the load's shape."""
    shape, most, best = np.array(case.load.shape), case.training.most_bytes_per_second, 0.0
    levels = np.array_split(np.unique(shape), min(3, len(np.unique(shape))))
    level_of = [next(place for place, level in enumerate(levels) if weight in level) for weight in case.load.shape]

    def level(now_ns: int) -> int:
        times = now_ns % case.load.period_ns, (now_ns + INTERVAL_NS - 1) % case.load.period_ns
        return max(level_of[time * len(shape) // case.load.period_ns] for time in times)

    def search(rates_of: Callable[[float], list[float]], low: float) -> float:
        nonlocal best
        high, rate = most, most
        for _ in range(1 + HALVINGS):
            rates = rates_of(rate)
            outcome = case.serve(PlannedRates(lambda now, rates=rates: rates[level(now)]))  # type: ignore[misc]
            if keeps(outcome):
                best, low = max(best, outcome.trained_bytes), rate
            else:
                high = rate
            if low == high:
                break
            rate = (low * high) ** 0.5
        return low

    rates = [search(lambda rate: [rate] * len(levels), most / 64)] * len(levels)
    constant = best
    for place in range(len(levels) if len(levels) > 1 else 0):
        rates[place] = search(lambda rate, place=place: [*rates[:place], rate, *rates[place + 1 :]], rates[place])  # type: ignore[misc]
    return constant, best


def summarise_protect(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of cases."""
    means = {name: float(np.mean([row[name] for row in rows])) for name in ("kept", "rate", "kept_unthrottled")}
    return {
        "protect_kept": means["kept"],
        "protect_rate": means["rate"],
        "protect_rate_worst": float(min(row["rate"] for row in rows)),
        "protect_kept_unthrottled": means["kept_unthrottled"],
    }
