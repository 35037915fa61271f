"""Ranges that the arrays and the disturbances of `bench hypertune_world` are drawn from.

Committed before the first run. A pair is (least, most); whole numbers are drawn uniformly, others uniformly in their
logarithm unless it is said otherwise. Shares of "the step" are of the plan's compute seconds. All of it is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Range = tuple[float, float]
WholeRange = tuple[int, int]


@dataclass(frozen=True)
class ArrayRanges:
    """What arrays are drawn from.

    Attributes:
        drives: of an array.
        class_speed: seconds of the second class of drives over the first one's.
        host_chance, host_speed: whether the host trains, and how many drives it is worth.
        record_seconds: of one record more.
        setup_records: seconds of a step that do not depend on its batch, in records.
        spill_records, spill_factor: from which batch on the caches hold less of a step, and a record's seconds there
            over those of a small batch (uniform).
        drive_records, host_records: the largest batch that memory holds.
        slow_batch: of the plan; with `knee_chance` it is the planner's own choice.
        exchange: seconds of the exchange, in steps.
        exchange_error, table_error: standard deviations of the logarithm of what the tuner is told over what is true;
            of a table one for each batch size that was calibrated (uniform).
        noise: standard deviation of the logarithm of a step's seconds.
        first_step: by what share a device's first step with another batch takes longer (uniform).
        retune_steps: what a retune costs everyone, in steps (uniform).
    """

    drives: WholeRange = (3, 16)
    class_speed: Range = (0.4, 1.0)
    host_chance: float = 0.7
    host_speed: Range = (4.0, 16.0)
    record_seconds: Range = (0.02, 0.5)
    setup_records: Range = (0.1, 8.0)
    spill_records: Range = (8.0, 256.0)
    spill_factor: Range = (1.0, 1.3)
    drive_records: WholeRange = (64, 512)
    host_records: WholeRange = (512, 4096)
    slow_batch: WholeRange = (2, 48)
    knee_chance: float = 0.5
    exchange: Range = (0.05, 1.5)
    exchange_error: Range = (0.0, 0.1)
    table_error: Range = (0.0, 0.03)
    noise: Range = (0.005, 0.03)
    first_step: Range = (0.0, 0.1)
    retune_steps: Range = (0.0, 0.3)


@dataclass(frozen=True)
class DisturbanceRanges:
    """What disturbances are drawn from.

    Attributes:
        count: of an array's disturbances, one after the other.
        quiet_steps, disturbed_steps: how long it is quiet before each, and after the last one; how long each lasts.
        devices_share: so many of the devices at most are disturbed at once, at least one (drawn up to it, uniform).
        factor: of kind ``factor``: seconds of every batch over the undisturbed ones.
        bandwidth_factor: of kind ``bandwidth``: the same of large batches; a batch of 1 is unharmed.
        bandwidth_records: how the factor grows: each record beyond the first is that much slower (``slope``), or those
            beyond so many (``cliff``), or the whole factor is approached with so many (``saturating``).
        extra: of kind ``extra``: seconds that come to every step of the device, in steps.
        return_count, return_quiet_steps, return_disturbed_steps, return_factor: of kind ``bursts``: one device that
            is slow, recovers and is slow again, instead of the above.
        burst_gap_steps, burst_steps, burst_factor: of kind ``bursts``: mean gap of the bursts of any device, how long
            they last and how slow it is then.
        drift_noise, drift_memory: of kind ``bursts``: autocorrelated noise of every device: standard deviation of the
            logarithm, and the share of it that is there in the next step (uniform).
    """

    count: WholeRange = (2, 3)
    quiet_steps: WholeRange = (100, 300)
    disturbed_steps: WholeRange = (150, 600)
    devices_share: float = 0.34
    factor: Range = (1.3, 6.0)
    bandwidth_factor: Range = (1.5, 4.0)
    bandwidth_records: Range = (2.0, 32.0)
    extra: Range = (0.2, 2.0)
    return_count: WholeRange = (3, 5)
    return_quiet_steps: WholeRange = (60, 200)
    return_disturbed_steps: WholeRange = (60, 240)
    return_factor: Range = (1.5, 4.0)
    burst_gap_steps: Range = (30.0, 120.0)
    burst_steps: WholeRange = (1, 6)
    burst_factor: Range = (1.5, 5.0)
    drift_noise: Range = (0.01, 0.06)
    drift_memory: Range = (0.8, 0.98)


@dataclass(frozen=True)
class WattRanges:
    """What the watts of arrays are drawn from.

    Attributes:
        drive_waiting, drive_computing: of a drive that is on, and so many more while it computes; of each class.
        host_waiting, host_computing: of the host with its chassis.
    """

    drive_waiting: Range = (1.0, 6.0)
    drive_computing: Range = (1.0, 8.0)
    host_waiting: Range = (20.0, 150.0)
    host_computing: Range = (20.0, 120.0)


@dataclass(frozen=True)
class WorldRanges:
    """All that a case is drawn from."""

    array: ArrayRanges = field(default_factory=ArrayRanges)
    disturbance: DisturbanceRanges = field(default_factory=DisturbanceRanges)
    watts: WattRanges = field(default_factory=WattRanges)


KINDS = ("factor", "bandwidth", "extra", "bursts")
