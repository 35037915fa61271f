"""Memory of a step: of a drive, from its calibration table; of the host, a generous guess."""

from __future__ import annotations

import psutil

from csd_emu.config.array_file import ArrayConfig, Device
from csd_emu.perfmodel.split.split_problem import DriveMemory, HostMemory
from csd_emu.profiles import Profile
from csd_emu.profiles.calibration import CalibrationTable
from host.config.sync_section import SyncSection
from host.policies.batching.memory_limit import available_bytes
from host.training.split.split_model import ACTIVATION_COPIES, PARAMETER_COPIES, SPARED_PARAMETER_COPIES


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
        parameter_copies=SPARED_PARAMETER_COPIES,
        activation_copies=1,
    )


def host_memory(profile: Profile) -> HostMemory:
    """Return the host's memory: its profile's, and no more than this machine has free, for the tail runs here."""
    free = psutil.virtual_memory().available
    return HostMemory(min(profile.dram_bytes.value, free), PARAMETER_COPIES, ACTIVATION_COPIES)
