"""Drives and hosts of `bench hypertune_world`: what their steps take, and what a tuner is told of it. Pure.

Made without any code of the tuner's: the seconds of a batch follow a formula of its own, and the tables that the tuner
gets are made from a few calibrated batches that are each a little wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_lab.bench.training.hypertune_ranges import ArrayRanges, Range, WholeRange

Seconds = npt.NDArray[np.float64]
# Number of the host's class; drives are of class 0 or 1.
HOST_KIND = 2


@dataclass(frozen=True)
class WorldArray:
    """An array of the world.

    Attributes:
        seconds: of each device those of batches of 1 to the largest that its memory holds, undisturbed.
        tables: of each device's class what calibration says of the same; devices of a class share one.
        kinds: number of each device's class.
        slow_batch: of the plan; None for the planner's own choice.
        exchange_share: seconds of the exchange, in steps.
        told_exchange: what the tuner is told of it over the true one.
        noise, first_step, retune_steps: see `ArrayRanges`.
    """

    seconds: tuple[Seconds, ...]
    tables: tuple[Seconds, ...]
    kinds: tuple[int, ...]
    slow_batch: int | None
    exchange_share: float
    told_exchange: float
    noise: float
    first_step: float
    retune_steps: float


def draw_array(draw: np.random.Generator, ranges: ArrayRanges) -> WorldArray:
    """Draw an array."""
    count = whole(draw, ranges.drives)
    record = scaled(draw, ranges.record_seconds)
    second = scaled(draw, ranges.class_speed)
    setup, spill = scaled(draw, ranges.setup_records), scaled(draw, ranges.spill_records)
    factor, memory = draw.uniform(*ranges.spill_factor), whole(draw, ranges.drive_records)
    classes = [_curve(record * speed, setup, spill, factor, memory) for speed in (1.0, second)]
    kinds = [0] * count
    if count > 1 and draw.uniform() < 0.5:
        kinds = [0] + [int(draw.integers(2)) for _ in range(count - 1)]
    if draw.uniform() < ranges.host_chance:
        speed = scaled(draw, ranges.host_speed)
        classes.append(_curve(record / speed, setup * speed**0.5, 1e9, 1.0, whole(draw, ranges.host_records)))
        kinds.append(HOST_KIND)
    error = draw.uniform(*ranges.table_error)
    tables = [_calibrated(draw, curve, error) for curve in classes]
    return WorldArray(
        seconds=tuple(classes[kind] for kind in kinds),
        tables=tuple(tables[kind] for kind in kinds),
        kinds=tuple(kinds),
        slow_batch=None if draw.uniform() < ranges.knee_chance else whole(draw, ranges.slow_batch, in_logarithm=True),
        exchange_share=scaled(draw, ranges.exchange),
        told_exchange=float(np.exp(draw.uniform(*ranges.exchange_error) * draw.standard_normal())),
        noise=scaled(draw, ranges.noise),
        first_step=draw.uniform(*ranges.first_step),
        retune_steps=draw.uniform(*ranges.retune_steps),
    )


def scaled(draw: np.random.Generator, bounds: Range) -> float:
    """Draw a number uniformly in its logarithm."""
    low, high = np.log(bounds)
    return float(np.exp(draw.uniform(low, high)))


def whole(draw: np.random.Generator, bounds: WholeRange, in_logarithm: bool = False) -> int:
    """Draw a whole number between two, both included."""
    if in_logarithm:
        return int(np.clip(round(scaled(draw, bounds)), *bounds))
    return int(draw.integers(bounds[0], bounds[1] + 1))


def _curve(record_seconds: float, setup_records: float, spill: float, factor: float, most: int) -> Seconds:
    """Return the seconds of batches of 1 to `most`: a setup, and records that take longer where caches spill."""
    batches = np.arange(1, most + 1)
    slower = 1 + (factor - 1) * batches**2 / (batches**2 + spill**2)
    return np.asarray(record_seconds * (setup_records + batches * slower))


def _calibrated(draw: np.random.Generator, curve: Seconds, error: float) -> Seconds:
    """Return what is known of a curve: its doublings, each off by some percent, and lines in between."""
    knots = sorted({*(2**power for power in range(20) if 2**power < len(curve)), len(curve)})
    known = [curve[knot - 1] * np.exp(error * draw.standard_normal()) for knot in knots]
    return np.maximum.accumulate(np.interp(np.arange(1, len(curve) + 1), knots, known))
