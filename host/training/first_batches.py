"""Batches that a job begins with: STANNIS's, for the part of the model that devices have and what a step takes beside.

What a step takes beside its slowest device's computing is `StepOverhead`: the exchange of the tensors that devices
have, and, of a model that is cut, for each record what crosses the cut and what the host computes behind it. It is that
of steps in which nothing overlaps, so a little too much where transfers do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.host_node import exchange_seconds, link_of
from csd_emu.perfmodel.split.split_problem import LABEL_BYTES, SPARED_PARAMETER_COPIES
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationTable
from host.config.sync_section import TuningSection
from host.core.device_time import host_model
from host.core.model_facts import Load
from host.core.tuning.batch_tuner import Batches
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.client_layers import WHOLE, Front
from host.policies.batching.device_speeds import DeviceClass, speed_tables
from host.policies.batching.record_limit import limit
from host.policies.batching.stannis import plan_batches
from host.training.host_room import most_host_records, planned_room_bytes

# These shares of STANNIS's batches are tried for a cut: what the host's part costs each record depends on them all.
_SCALES = tuple(2.0**power for power in range(-5, 1))
# At first the host's part is taken to cost each record what it does in a step of so many.
_HOST_RECORDS = 64
# A step may have more records as long as the host's part costs each of them no more than this times as much.
_DEARER = 1.05
_MOST_RECORDS = 1 << 20


class StepOverhead(NamedTuple):
    """What a step takes beside its slowest device's computing.

    Attributes:
        step_seconds: whatever the batches.
        record_seconds: for each record of all devices.
    """

    step_seconds: float
    record_seconds: float = 0.0

    def of(self, records: int) -> float:
        """Return the seconds of a step of so many records of all devices."""
        return self.step_seconds + self.record_seconds * records


NO_OVERHEAD = StepOverhead(0.0)


OverheadAt = Callable[[int], StepOverhead]
"""Returns what steps of about so many records of all devices take beside computing."""


def step_overhead(
    config: ArrayConfig, load: Load, front: Front = WHOLE, host_table: CalibrationTable | None = None
) -> OverheadAt:
    """Return what says how long steps of an array take beside computing.

    Args:
        config: the array.
        load: what is trained.
        front: the part of the model that the devices have.
        host_table: from which the host's seconds follow; None if nobody knows them.
    """
    host, names = get_profile(config.host.profile), config.list_devices()
    drives, link = [get_profile(device.profile) for device in names], link_of(config.link, host)
    state, gradient = (round(front.encode_share * size) for size in (load.state_bytes, load.gradient_bytes))
    exchange = exchange_seconds(drives, link, state, gradient, config.host.trains)
    if front == WHOLE:
        return lambda _: StepOverhead(exchange)
    crossing = (2 * front.crossing_bytes + LABEL_BYTES) / link.bytes_per_second / (1 if link.shared else len(drives))
    if host_table is None:
        return lambda _: StepOverhead(exchange, crossing)
    model = host_model(host_table, host)

    def overhead_at(records: int) -> StepOverhead:
        whole = model.step_seconds(records)
        behind = whole.forward * (1 - front.forward_share) + whole.backward * (1 - front.backward_share)
        return StepOverhead(exchange, crossing + behind / records)

    return overhead_at


def first_batches(
    config: ArrayConfig,
    classes: Mapping[str, DeviceClass],
    tuning: TuningSection,
    overhead_at: OverheadAt,
    front: Front = WHOLE,
) -> Batches:
    """Return (nodes,) records per step: STANNIS's.

    Those of a model that is cut are no more than the host has room for. What its part costs each record depends on all
    of them, so of several shares of STANNIS's batches the smallest is taken that is within the knee of the best.
    With a `slow_batch` they stay.

    Args:
        config: the array.
        classes: node -> its speed and memory, in participant order.
        tuning: how they are chosen.
        overhead_at: says what steps take beside.
        front: the part of the model that the devices have.

    Raises:
        ConfigurationError: there is no device, or `slow_batch` does not fit.
    """
    tables = list(speed_tables(classes).values())
    planned = plan_batches(tables, tuning, *overhead_at(_HOST_RECORDS)).batches
    if front == WHOLE or tuning.slow_batch is not None:
        return planned
    room_bytes = planned_room_bytes(get_profile(config.host.profile))
    room = most_host_records(front.spared_bytes // SPARED_PARAMETER_COPIES, front.spared_record_bytes, room_bytes)
    largest = np.array([table.largest_batch for table in tables])
    tried = [np.clip(limit(np.minimum(by * planned, largest).astype(np.int64), room), 1, largest) for by in _SCALES]
    rates = np.array([_records_per_second(tables, each, overhead_at) for each in tried])
    return tried[int((rates >= (1 - tuning.knee) * rates.max()).argmax())]


def _records_per_second(tables: Sequence[SpeedTable], batches: Batches, overhead_at: OverheadAt) -> float:
    records = int(batches.sum())
    longest = max(table.seconds(int(batch)) for table, batch in zip(tables, batches, strict=True))
    return records / (longest + overhead_at(records).of(records))


def most_step_records(records: int, overhead_at: OverheadAt) -> int:
    """Return with how many records a step costs each of them about what it does with so many `records`, or less."""
    cost = _DEARER * overhead_at(records).record_seconds

    def is_as_cheap(count: int) -> bool:
        return count <= _MOST_RECORDS and overhead_at(count).record_seconds <= cost

    most = records
    while is_as_cheap(2 * most):
        most *= 2
    for more in (most // 2, most // 4, most // 8, most // 16):
        if is_as_cheap(most + more):
            most += more
    return most
