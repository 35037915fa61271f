"""Oracle of `bench hypertune_world`: the batches that are best in a period, from all that was possible. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from csd_lab.bench.training.hypertune_disturbances import Period
from csd_lab.bench.training.hypertune_drives import Seconds

Whole = npt.NDArray[np.int64]
# What an array draws: watts of all that waits, and so many more of each device that computes, (devices,).
Watts = tuple[float, Seconds]
# So many lengths of a step are tried, from the shortest on.
LENGTHS = 400
# Bursts and noise: a device is taken for as slow as it is in this share of the steps, or for its mean (None).
_QUANTILES = (None, 0.5, 0.75, 0.9, 0.97)
_ENERGY_QUANTILES = (None, 0.9)


def best_batches(
    period: Period,
    factors: Seconds,
    exchange_seconds: float,
    most_records: int,
    largest: Whole,
    watts: Watts | None = None,
) -> tuple[float, Whole]:
    """Return the highest records per second (per joule) of a period with batches that stay, and those batches.

    For a length of a step each device gets the largest batch that it does in it, and then records are taken from
    whoever takes longest until there are no more than `most_records`. Without noise the best of all
    lengths is the best there is; with it, the best of those that were tried.

    Args:
        period: what batches take.
        factors: (steps, devices) noise and bursts of these steps.
        exchange_seconds: of each step.
        most_records: of a step.
        largest: (devices,) the largest batch of each.
        watts: of the array, for records per joule: then one device may be left out too, or half of them, or all but two
            or one; the costliest ones.
    """
    curves = [seconds[:most] for seconds, most in zip(period.seconds, largest, strict=True)]
    best, chosen = 0.0, np.zeros(len(curves), dtype=np.int64)
    for quantile in _QUANTILES if watts is None else _ENERGY_QUANTILES:
        slow = factors.mean(axis=0) if quantile is None else np.quantile(factors, quantile, axis=0)
        own = [curve * each for curve, each in zip(curves, slow, strict=True)]
        for batches in candidates(own, most_records) if watts is None else _without(own, most_records, watts[1]):
            if (rate := rate_of(batches, curves, factors, exchange_seconds, watts)) > best:
                best, chosen = rate, batches
    return best, chosen


def _without(curves: Sequence[Seconds], most_records: int, computing: Seconds) -> Iterator[Whole]:
    """Yield candidates of all devices, and of those with the fewest joules per record."""
    costs = [
        watts * float((curve / np.arange(1, len(curve) + 1)).min())
        for curve, watts in zip(curves, computing, strict=True)
    ]
    order = np.argsort(costs)
    for count in sorted({len(curves), len(curves) - 1, (len(curves) + 1) // 2, 2, 1} - {0}):
        kept = np.sort(order[:count])
        for some in candidates([curves[number] for number in kept], most_records):
            batches = np.zeros(len(curves), dtype=np.int64)
            batches[kept] = some
            yield batches


def candidates(curves: Sequence[Seconds], most_records: int) -> list[Whole]:
    """Return different batches, (devices,) each, for lengths up to the one in which all the records are done."""
    lengths = np.unique(np.concatenate(curves))
    if len(lengths) > LENGTHS:
        totals = sum(np.searchsorted(curve, lengths, side="right") for curve in curves)
        reached = int(np.searchsorted(totals, most_records))
        kept = np.unique(np.linspace(0, min(reached, len(lengths) - 1), LENGTHS).round().astype(np.int64))
        lengths = lengths[kept]
    found: list[Whole] = []
    for length in lengths:
        batches = np.array([np.searchsorted(curve, length * (1 + 1e-12), side="right") for curve in curves])
        full = int(batches.sum()) >= most_records
        while int(batches.sum()) > most_records:
            seconds = [curve[batch - 1] if batch else 0.0 for curve, batch in zip(curves, batches, strict=True)]
            batches[int(np.argmax(seconds))] -= 1
        found.append(batches)
        if full:
            break
    return found


def rate_of(
    batches: Whole,
    curves: Sequence[Seconds],
    factors: Seconds,
    exchange_seconds: float,
    watts: Watts | None = None,
) -> float:
    """Return the records per second (per joule) of steps with these batches."""
    seconds = np.array([curve[batch - 1] if batch else 0.0 for curve, batch in zip(curves, batches, strict=True)])
    total = int(batches.sum())
    length = float((factors * seconds).max(axis=1).mean() + exchange_seconds)
    if watts is not None:
        length = watts[0] * length + float(watts[1] @ (factors * seconds).mean(axis=0))
    return total / length if total else 0.0
