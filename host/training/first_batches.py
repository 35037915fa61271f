"""Batches that a job begins with: STANNIS's, for the part of the model that devices have and what a step takes beside.

What a step takes beside its slowest device's computing is `StepOverhead`: the exchange of the tensors that devices
have, and, of a model that is cut, for each record what crosses the cut and what the host computes behind it. It is that
of steps in which nothing overlaps, so a little too much where transfers do.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from host.policies.batching.client_layers import WHOLE, Front
from host.policies.batching.device_speeds import DeviceClass, speed_tables
from host.policies.batching.record_limit import limit
from host.policies.batching.stannis import plan_batches
from host.training.host_room import most_host_records

# Of so many records a step the host's part is taken to cost each record what it does: larger batches change little.
_HOST_RECORDS = 64


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


def step_overhead(
    config: ArrayConfig, load: Load, front: Front = WHOLE, host_table: CalibrationTable | None = None
) -> StepOverhead:
    """Return what steps of an array take beside computing.

    Args:
        config: the array.
        load: what is trained.
        front: the part of the model that the devices have.
        host_table: of a reference drive, from which the host's seconds follow; None if nobody knows them.
    """
    host, names = get_profile(config.host.profile), config.list_devices()
    drives, link = [get_profile(device.profile) for device in names], link_of(config.link, host)
    state, gradient = (round(front.encode_share * size) for size in (load.state_bytes, load.gradient_bytes))
    exchange = exchange_seconds(drives, link, state, gradient, config.host.trains)
    if front == WHOLE:
        return StepOverhead(exchange)
    crossing = (2 * front.crossing_bytes + LABEL_BYTES) / link.bytes_per_second / (1 if link.shared else len(drives))
    if host_table is None or host.ratio is None:
        return StepOverhead(exchange, crossing)
    whole = host_model(host_table, host).step_seconds(_HOST_RECORDS)
    behind = whole.forward * (1 - front.forward_share) + whole.backward * (1 - front.backward_share)
    return StepOverhead(exchange, crossing + behind / _HOST_RECORDS)


def first_batches(
    config: ArrayConfig,
    classes: Mapping[str, DeviceClass],
    tuning: TuningSection,
    overhead: StepOverhead,
    front: Front = WHOLE,
) -> Batches:
    """Return (nodes,) records per step: STANNIS's, and of a model that is cut no more than the host has room for.

    Args:
        config: the array.
        classes: node -> its speed and memory, in participant order.
        tuning: how they are chosen.
        overhead: of a step.
        front: the part of the model that the devices have.

    Raises:
        ConfigurationError: there is no device, or `slow_batch` does not fit.
    """
    batches = plan_batches(list(speed_tables(classes).values()), tuning, *overhead).batches
    if front == WHOLE:
        return batches
    moved_bytes = front.spared_bytes // SPARED_PARAMETER_COPIES
    most = most_host_records(moved_bytes, front.spared_record_bytes, get_profile(config.host.profile))
    return np.maximum(1, limit(batches, most))
