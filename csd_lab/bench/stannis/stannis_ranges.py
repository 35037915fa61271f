"""Ranges from which the arrays of `bench stannis_world` are drawn. Chosen, and committed, before its first run.

They follow what is known of such devices, not what STANNIS can do: kernels work in tiles of 2 to 32 records, a working
set outgrows a cache at some batch and costs more from there on, a step has a fixed cost of a fraction of a record to
some dozens, parallel processors fill up slowly, and a server's drives have 1/40 to all of its speed. All are
assumptions; none is a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = Literal["offset", "saturating", "tiles", "cache", "power"]
Range = tuple[float, float]

SHAPES: tuple[Shape, ...] = ("offset", "saturating", "tiles", "cache", "power")
# Without a limit of its own a device takes so many records, as the product allows.
MOST_RECORDS = 16_384


@dataclass(frozen=True)
class ClassRanges:
    """What is drawn for an array, its classes and their curves. Ranges are uniform; those of `log` names log-uniform.

    Attributes:
        classes: of an array, both ends included.
        devices: of each class, both ends included.
        slow_rate_log: records per second of the slowest class at large batches.
        faster_log: every further class is so many times as fast.
        offset_records_log: fixed cost of a step, in records at the large batch's rate (shapes other than saturating).
        saturation_records_log: the batch at which a saturating curve has 63 % of its rate.
        tile_records: records of a tile, one of these.
        cache_records_log: the batch at which the working set leaves the cache.
        cache_jump: share of a step's seconds by which they jump there.
        cache_steeper: share by which every further record costs more.
        power: exponent of the batch.
        exchange_log: seconds of the exchange, in steps of 8 records of the slowest class.
        no_exchange: share of the arrays in which it takes no time.
        limited: share of the classes that have a memory limit.
        limit_records_log: records that such a device has memory for.
        table_batches: the batches that a calibration measures (figure `over_best_measured`).
        table_noise: standard deviation of the relative error of such a measurement.
    """

    classes: tuple[int, int] = (2, 4)
    devices: tuple[int, int] = (1, 8)
    slow_rate_log: Range = (1.0, 50.0)
    faster_log: Range = (1.0, 40.0)
    offset_records_log: Range = (0.1, 32.0)
    saturation_records_log: Range = (0.5, 32.0)
    tile_records: tuple[int, ...] = (2, 4, 8, 16, 32)
    cache_records_log: Range = (4.0, 256.0)
    cache_jump: Range = (0.0, 0.5)
    cache_steeper: Range = (0.0, 0.6)
    power: Range = (0.85, 1.15)
    exchange_log: Range = (0.01, 3.0)
    no_exchange: float = 0.1
    limited: float = 0.35
    limit_records_log: Range = (1.0, 512.0)
    table_batches: tuple[int, ...] = (1, 2, 4, 8, 15, 16, 32, 64)
    table_noise: float = 0.005


RANGES = ClassRanges()
# Arrays that are drawn from each seed.
ARRAYS_PER_SEED = 100
