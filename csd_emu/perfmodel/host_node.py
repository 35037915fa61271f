"""The host's work in a synchronous step: its own share of the batch, the sum of gradients, and the optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from csd_emu.config.array_file import LinkSection
from csd_emu.perfmodel.host_only import Storage
from csd_emu.perfmodel.sharing import Link
from csd_emu.perfmodel.step import DeviceWork, DriveFigures, time_step
from csd_emu.perfmodel.timeline import Activity
from csd_emu.profiles import Profile, Sourced
from csd_emu.util.node_names import HOST

# The sum and the optimiser do one or two operations per value: memory bounds them, not arithmetic.
MEMORY_BYTES_PER_SECOND = Sourced(
    19.2e9, "assumed: one core adds up, as fast as one channel of DDR4-2400 (8 B x 2.4 GT/s); no figure was published"
)
# Read a gradient, read and write the sum.
_TOUCHED_BY_SUM = 3
# SGD with momentum: read the gradient, read and write momentum and weight.
_TOUCHED_BY_OPTIMISER = 5


def link_of(section: LinkSection, host: Profile) -> Link:
    """Return the host's side of the link: as configured, else the host's profile's."""
    return Link(
        bytes_per_second=host.link_bytes_per_second.value if section.bandwidth is None else section.bandwidth,
        latency_seconds=host.link_latency_seconds.value if section.latency is None else section.latency,
        shared=section.shared,
    )


def storage_of(host: Profile, drives: Sequence[Profile]) -> Storage:
    """Return the drives as the host's plain storage: records lie on all of them, equally, so the slowest sets the pace.

    Args:
        host: the server's profile.
        drives: one profile per drive, at least one.
    """
    unique = {drive.name: drive for drive in drives}.values()
    return Storage(
        drives=len(drives),
        drive_bytes_per_second=min(
            min(drive.flash_bytes_per_second.value, drive.nvme_bytes_per_second.value) for drive in unique
        ),
        host_bytes_per_second=host.nvme_bytes_per_second.value,
        latency_seconds=max(drive.flash_latency_seconds.value for drive in unique),
    )


def host_activity(batch_size: int, record_bytes: int, phases: Mapping[str, float], storage: Storage) -> Activity:
    """Return the host's own part of a step, for `timeline.compose`.

    Args:
        batch_size: records that it trains on.
        record_bytes: of one record, read over NVMe ahead of the step.
        phases: compute phase -> seconds, in order.
        storage: where the records lie.
    """
    return Activity(
        device=HOST,
        receive_bytes=0,
        read_bytes=batch_size * record_bytes,
        read_operations=1 if batch_size else 0,
        phases=phases,
        send_bytes=0,
        flash_bytes_per_second=storage.bytes_per_second,
        flash_latency_seconds=storage.latency_seconds,
        link_bytes_per_second=storage.bytes_per_second,
        link_latency_seconds=0.0,
    )


def reduce_seconds(gradient_bytes: int, gradients: int) -> float:
    """Return how long the host adds up gradients and steps the optimiser, once all are there.

    Bytes touched over `MEMORY_BYTES_PER_SECOND`: three times each gradient, five times the weights for SGD with
    momentum. An upper bound for a host that adds up while gradients still come.

    Args:
        gradient_bytes: of one gradient, so of the weights.
        gradients: how many are added up, the host's own included.
    """
    return (_TOUCHED_BY_SUM * gradients + _TOUCHED_BY_OPTIMISER) * gradient_bytes / MEMORY_BYTES_PER_SECOND.value


def exchange_seconds(
    drives: Sequence[Profile], link: Link, state_bytes: int, gradient_bytes: int, trains: bool = False
) -> float:
    """Return what the exchange adds to a step: sending the state both ways, adding up, the optimiser.

    Args:
        drives: one profile per drive that takes part.
        link: the host's side.
        state_bytes: of weights and buffers.
        gradient_bytes: of the gradients alone.
        trains: whether the host adds a gradient of its own.
    """
    state = np.full(len(drives), float(state_bytes))
    times = time_step(DeviceWork(state, np.zeros(len(drives)), state), DriveFigures.of(drives), link)
    return float(times.end_seconds) + reduce_seconds(gradient_bytes, len(drives) + trains)
