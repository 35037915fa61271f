"""Drawn arrays of `bench stannis_world`, their true step seconds, and their best batches by brute force. Pure.

Nothing of STANNIS is used here: it is given `DrawnClass.step_seconds` as any table, and its batches are judged by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_lab.bench.stannis.stannis_ranges import MOST_RECORDS, RANGES, SHAPES, ClassRanges, Range, Shape

Seconds = npt.NDArray[np.float64]
# Two times that differ by no more are the same one.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class DrawnClass:
    """Equal devices.

    Attributes:
        shape: of the curve.
        devices: how many there are.
        step_seconds: (most records,) float64; ``step_seconds[b - 1]`` is what a step of b records takes.
        limit: records that a device has memory for.
    """

    shape: Shape
    devices: int
    step_seconds: Seconds
    limit: int

    @property
    def within_memory(self) -> Seconds:
        """(limit,) seconds of the batches that fit."""
        return self.step_seconds[: self.limit]


@dataclass(frozen=True)
class DrawnArray:
    """Devices that train together.

    Attributes:
        classes: at least one.
        exchange_seconds: of a step, after the slowest device.
    """

    classes: tuple[DrawnClass, ...]
    exchange_seconds: float

    @property
    def devices(self) -> int:
        """How many there are."""
        return sum(one.devices for one in self.classes)

    def rate(self, batches: Sequence[int]) -> float:
        """Return the records per second of (classes,) batches, each of every device of its class.

        Raises:
            ValueError: a batch is not between 1 and the class's limit.
        """
        if any(not 1 <= batch <= one.limit for one, batch in zip(self.classes, batches, strict=True)):
            raise ValueError(f"batches {list(batches)} are not between 1 and {[one.limit for one in self.classes]}")
        longest = max(float(one.step_seconds[batch - 1]) for one, batch in zip(self.classes, batches, strict=True))
        return self.records(batches) / (longest + self.exchange_seconds)

    def records(self, batches: Sequence[int]) -> int:
        """Return the records of a step."""
        return sum(one.devices * int(batch) for one, batch in zip(self.classes, batches, strict=True))

    def saturated_records(self, share: float = 0.95) -> int:
        """Return the records of the shortest step in which every device, had it memory, has `share` of its best rate.

        No tuner is asked, so none is judged more kindly for small batches.
        """
        batches = np.arange(1, MOST_RECORDS + 1)
        rates = [batches / one.step_seconds for one in self.classes]
        saturated = [int(np.argmax(rate >= share * rate.max())) for rate in rates]
        length = max(float(one.step_seconds[at]) for one, at in zip(self.classes, saturated, strict=True))
        return self.records(
            [max(1, int(np.searchsorted(one.step_seconds, length, side="right"))) for one in self.classes]
        )

    def best_rate(self, most_records: int, least: int = 1) -> float:
        """Return the highest rate of all batches with at most `most_records` records a step.

        A step is as long as some device takes for some batch, so every such time is tried: in it each device computes
        as many records as fit, and any number of records up to their sum can be dealt out. Devices of a class may have
        different batches.

        Args:
            most_records: at least as many as devices.
            least: records of each device; 0 lets devices stand idle.
        """
        curves = [one.within_memory for one in self.classes]
        times = np.unique(np.concatenate(curves))
        times = times[times >= max(float(curve[0]) for curve in curves)] if least else times
        totals = sum(
            one.devices * np.searchsorted(curve, times * _ROUNDING, side="right")
            for one, curve in zip(self.classes, curves, strict=True)
        )
        return float((np.minimum(totals, most_records) / (times + self.exchange_seconds)).max())


def draw_array(generator: np.random.Generator, ranges: ClassRanges = RANGES) -> DrawnArray:
    """Return an array of classes whose curves differ in shape, not in a factor alone."""
    slow = _log(generator, ranges.slow_rate_log)
    classes = []
    for number in range(int(generator.integers(*ranges.classes, endpoint=True))):
        rate = slow * (_log(generator, ranges.faster_log) if number else 1.0)
        shape = SHAPES[int(generator.integers(len(SHAPES)))]
        devices = int(generator.integers(*ranges.devices, endpoint=True))
        seconds = _draw_seconds(shape, rate, generator, ranges)
        limited = generator.random() < ranges.limited
        limit = int(_log(generator, ranges.limit_records_log))
        classes.append(DrawnClass(shape, devices, seconds, limit if limited else MOST_RECORDS))
    slowest = max(float(one.step_seconds[7]) for one in classes)
    exchange = _log(generator, ranges.exchange_log) * slowest
    return DrawnArray(tuple(classes), 0.0 if generator.random() < ranges.no_exchange else exchange)


def measured_seconds(seconds: Seconds, generator: np.random.Generator, ranges: ClassRanges = RANGES) -> Seconds:
    """Return what a calibration of a few batches makes of a curve: lines between noisy points, never falling."""
    measured = np.array(ranges.table_batches)
    points = seconds[measured - 1] * (1 + generator.normal(0.0, ranges.table_noise, len(measured)))
    batches = np.arange(1, len(seconds) + 1)
    slope = max(0.0, float(points[-1] - points[-2]) / float(measured[-1] - measured[-2]))
    beyond = points[-1] + slope * (batches - measured[-1])
    lines = np.where(batches > measured[-1], beyond, np.interp(batches, measured, points))
    return np.asarray(np.maximum.accumulate(lines))


def _draw_seconds(shape: Shape, rate: float, generator: np.random.Generator, ranges: ClassRanges) -> Seconds:
    batches = np.arange(1, MOST_RECORDS + 1, dtype=np.float64)
    offset = _log(generator, ranges.offset_records_log)
    curves: dict[Shape, Callable[[], Seconds]] = {
        "offset": lambda: offset + batches,
        "saturating": lambda: batches / -np.expm1(-batches / _log(generator, ranges.saturation_records_log)),
        "tiles": lambda: offset + _in_tiles(batches, int(generator.choice(ranges.tile_records))),
        "cache": lambda: _beyond_cache(offset + batches, batches, generator, ranges),
        "power": lambda: offset + batches ** generator.uniform(*ranges.power),
    }
    return np.asarray(np.maximum.accumulate(curves[shape]() / rate))


def _in_tiles(batches: Seconds, tile: int) -> Seconds:
    return np.asarray(np.ceil(batches / tile) * tile)


def _beyond_cache(seconds: Seconds, batches: Seconds, generator: np.random.Generator, ranges: ClassRanges) -> Seconds:
    edge = _log(generator, ranges.cache_records_log)
    jump, steeper = generator.uniform(*ranges.cache_jump), generator.uniform(*ranges.cache_steeper)
    further = np.maximum(0.0, batches - edge)
    return np.asarray(seconds * (1 + jump * (batches > edge)) + steeper * further)


def _log(generator: np.random.Generator, bounds: Range) -> float:
    return math.exp(generator.uniform(math.log(bounds[0]), math.log(bounds[1])))
