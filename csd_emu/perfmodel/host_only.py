"""Baseline of computing drives: the host trains, the drives are plain storage.

The host reads every record from the drives over NVMe, ahead of what it computes (prefetch): reading and computing
overlap but for the first batch, which must have come, and the last, which must be computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.power import PowerFigures, busy_core_seconds, host_energy
from csd_emu.perfmodel.sharing import Floats, check_numbers
from csd_emu.profiles import Profile


@dataclass(frozen=True)
class Storage:
    """The drives as plain storage.

    Attributes:
        drives: over how many the records are spread, equally.
        drive_bytes_per_second: that one delivers, the slower of its flash and its NVMe link.
        host_bytes_per_second: that the host takes in from all together.
        latency_seconds: of one read.
    """

    drives: int
    drive_bytes_per_second: float
    host_bytes_per_second: float
    latency_seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Bandwidth of all drives together, as the host sees it."""
        return min(self.host_bytes_per_second, self.drives * self.drive_bytes_per_second)

    def read_seconds(self, read_bytes: Floats) -> Floats:
        """Return how long the host reads so many bytes at once; none take no time."""
        return np.asarray(read_bytes / self.bytes_per_second + (read_bytes > 0) * self.latency_seconds)


@dataclass(frozen=True)
class HostOnlyBaseline:
    """The baseline's figures.

    Attributes:
        seconds: until the last batch is computed.
        bytes: over the host link, all of them reads.
        read_seconds: that the reads take.
        compute_seconds: that the host computes.
        exposed_seconds: that it waits for reads.
    """

    seconds: float
    bytes: int
    read_seconds: float
    compute_seconds: float
    exposed_seconds: float


def train_on_host(
    samples: int, record_bytes: int, batch_size: int, phases: Mapping[str, float], storage: Storage
) -> HostOnlyBaseline:
    """Return how long the host takes to train on `samples` records that lie on plain drives.

    With K equal batches, r seconds to read and c seconds to compute one, the end is at r + (K - 1) max(r, c) + c.

    Args:
        samples: records trained on, repetitions counted: each is read again.
        record_bytes: of one record.
        batch_size: records of one step.
        phases: compute phase -> seconds of the host for all samples, in order.
        storage: the drives.

    Raises:
        ConfigurationError: there is nothing to train on, or a number is out of range.
    """
    _check(samples, record_bytes, batch_size, phases, storage)
    batches = math.ceil(samples / batch_size)
    volume = samples * record_bytes
    read_batch = volume / batches / storage.bytes_per_second + storage.latency_seconds
    compute = math.fsum(phases.values())
    seconds = read_batch + (batches - 1) * max(read_batch, compute / batches) + compute / batches
    return HostOnlyBaseline(seconds, volume, read_batch * batches, compute, seconds - compute)


def baseline_joules(
    base: HostOnlyBaseline, host: Profile, drives: Sequence[Profile], phases: Mapping[str, float]
) -> float:
    """Return the energy of a baseline: host, chassis, and drives that idle but for the records read from them.

    Args:
        base: the baseline.
        host: the server's profile.
        drives: one profile per drive.
        phases: what `train_on_host` was given.
    """
    none, share = np.zeros(len(drives)), np.full(len(drives), base.bytes / len(drives))
    plain = PowerFigures.of(drives).energy(base.seconds, none, none, share, share)
    own = host_energy(host, base.seconds, busy_core_seconds(host, phases), base.compute_seconds, base.bytes)
    return sum(own.values()) + sum(float(each.sum()) for each in plain.values())


def _check(samples: int, record_bytes: int, batch_size: int, phases: Mapping[str, float], storage: Storage) -> None:
    positive = {
        "samples": samples,
        "record bytes": record_bytes,
        "batch size": batch_size,
        "drives": storage.drives,
        "a drive's bandwidth": storage.drive_bytes_per_second,
        "the host's bandwidth": storage.host_bytes_per_second,
    }
    check_numbers("baseline", positive, {"latency": storage.latency_seconds, **phases})
