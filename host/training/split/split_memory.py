"""Memory of a step: of a drive, from its calibration table; of the host, a generous guess."""

from __future__ import annotations

import psutil

from csd_emu.config.array_file import ArrayConfig, Device
from csd_emu.perfmodel.split.split_problem import DriveMemory
from csd_emu.profiles import Profile
from csd_emu.profiles.calibration import CalibrationTable
from host.config.sync_section import SyncSection
from host.policies.batching.memory_limit import available_bytes


def drive_memory(
    config: ArrayConfig,
    device: Device,
    profile: Profile,
    table: CalibrationTable,
    sync: SyncSection,
    batch_size: int,
    shard_bytes: int,
) -> DriveMemory:
    """Return a drive's memory. Records can be computed in parts, but with statistics over all of a step's."""
    least = batch_size if sync.batch_norm == "synchronised" else 1
    return DriveMemory(
        available_bytes=available_bytes(config, device, profile, shard_bytes),
        least_bytes=table.peak_memory_bytes(least),
        least_records=least,
        whole_bytes=table.peak_memory_bytes(batch_size),
    )


def host_memory_bytes(profile: Profile) -> float:
    """Return what the tail may take: the memory of the host's profile, and no more than is free here, where it runs."""
    return min(profile.dram_bytes.value, psutil.virtual_memory().available)
