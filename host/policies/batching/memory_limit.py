"""Memory of a device, and the largest batch that fits in it. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from csd_emu.config.array_file import ArrayConfig, Device
from csd_emu.profiles import Profile
from csd_emu.profiles.calibration import CalibrationTable
from csd_emu.util.node_names import HOST
from host.policies.batching.client_layers import WHOLE, Front

# What a drive's system needs beside the agent: the kernel and its page tables (a 64th of the memory), systemd, and room
# for the pages of files in use. Assumed: a drive's own system is not published.
RESERVE_BYTES = 256 << 20


@dataclass(frozen=True)
class Memory:
    """What a class of devices needs and has.

    Attributes:
        available_bytes: for the agent: the device's DRAM without the system's reserve and a shard in memory.
        device_bytes: DRAM of the device.
        table: says what a batch needs.
        front: what of it the device is spared.
    """

    available_bytes: int
    device_bytes: int
    table: CalibrationTable
    front: Front = WHOLE

    def needed_bytes(self, batch_size: int) -> int:
        """Return the peak that the table expects of the agent at a batch that is computed at once."""
        return max(0, self.table.peak_memory_bytes(batch_size) - self.front.spared(batch_size))

    def largest_batch(self, most: int) -> int:
        """Return the largest batch up to `most` that fits, 0 if none does."""
        return bisect_right(range(1, most + 1), self.available_bytes, key=self.needed_bytes)


def available_bytes(config: ArrayConfig, device: Device, profile: Profile, shard_bytes: int) -> int:
    """Return a device's memory for the agent: without the system's reserve, and a shard that is kept in memory."""
    free = _device_bytes(config, device, profile) - RESERVE_BYTES
    return free - (shard_bytes if shard_bytes <= free // 4 else 0)


def _device_bytes(config: ArrayConfig, device: Device, profile: Profile) -> int:
    own = int(profile.dram_bytes.value)
    return min(own, int(config.memory)) if device.engine == config.counted_engine and device.name != HOST else own


def device_memory(
    config: ArrayConfig, device: Device, profile: Profile, table: CalibrationTable, shard_bytes: int
) -> Memory:
    """Return what a device has for the agent, and what its model's table says that the agent needs."""
    return Memory(available_bytes(config, device, profile, shard_bytes), _device_bytes(config, device, profile), table)
