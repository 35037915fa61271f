"""`power.device_energy` for many drives at once: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.sharing import Floats
from csd_emu.profiles import Profile


@dataclass(frozen=True)
class PowerFigures:
    """What the drives draw, (drives,) float64 each: see `profiles.Power`."""

    cores: Floats
    idle_watts: Floats
    core_watts: Floats
    dram_watts: Floats
    flash_joules_per_byte: Floats
    link_joules_per_byte: Floats

    @classmethod
    def of(cls, profiles: Sequence[Profile]) -> PowerFigures:
        """Return the figures of one drive per profile."""
        powers = [profile.power for profile in profiles]
        return cls(
            np.array([profile.cores.value for profile in profiles]),
            np.array([power.idle_watts.value for power in powers]),
            np.array([power.core_watts.value for power in powers]),
            np.array([power.dram_watts.value for power in powers]),
            np.array([power.flash_joules_per_byte.value for power in powers]),
            np.array([power.link_joules_per_byte.value for power in powers]),
        )

    def energy(
        self,
        elapsed_seconds: float,
        parallel_seconds: Floats,
        serial_seconds: Floats,
        read_bytes: Floats,
        link_bytes: Floats,
    ) -> dict[str, Floats]:
        """Return joules per component, (drives,) each.

        Args:
            elapsed_seconds: how long the drives were on.
            parallel_seconds: (drives,) in which all of a drive's cores were busy: forward and backward.
            serial_seconds: (drives,) in which one of them was: encoding.
            read_bytes: (drives,) from flash.
            link_bytes: (drives,) sent and received.
        """
        return {
            "idle": self.idle_watts * elapsed_seconds,
            "cpu": self.core_watts * (self.cores * parallel_seconds + serial_seconds),
            "dram": self.dram_watts * (parallel_seconds + serial_seconds),
            "flash": self.flash_joules_per_byte * read_bytes,
            "link": self.link_joules_per_byte * link_bytes,
        }
