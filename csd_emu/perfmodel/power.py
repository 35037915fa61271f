"""Power and energy over device seconds: idle + cores x activity + DRAM + flash per byte + link per byte.

Every watt comes from a profile, with its source. What rests on an assumed figure says so (`Profile.entries`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from csd_emu.perfmodel.sharing import Floats
from csd_emu.perfmodel.timeline import COMMUNICATION, READ, Span
from csd_emu.profiles import PARALLEL_PHASES, Power, Profile

COMPONENTS = ("idle", "cpu", "dram", "flash", "link")
CHASSIS = "chassis"
# In place of a drive's own components, where its sensor saw them all together.
MEASURED = "measured"


@dataclass(frozen=True)
class Published:
    """A published result: speed-up and energy factor, both against the same server without in-storage computing."""

    speedup: float
    energy_factor: float
    source: str

    @property
    def power_ratio(self) -> float:
        """Power with computing drives over power without, if both maxima are of one run."""
        return self.speedup / self.energy_factor


PUBLISHED = {
    "hypertune": Published(3.1, 2.45, "HyperTune, ICCAD 2020: up to 3.1x performance, 2.45x less energy"),
    "stannis": Published(2.7, 1 / (1 - 0.69), "STANNIS, DAC 2020: up to 2.7x speed-up, 69 % less energy"),
    "solana": Published(3.1, 1 / (1 - 0.67), "Solana, ISQED 2022: up to 3.1x, energy -67 %"),
}


Amount = TypeVar("Amount", float, Floats)


@dataclass(frozen=True)
class PowerFigures(Generic[Amount]):
    """What one device draws, float, or each of many, (devices,) float64: see `csd_emu.profiles.Power`."""

    cores: Amount
    idle_watts: Amount
    core_watts: Amount
    dram_watts: Amount
    flash_joules_per_byte: Amount
    link_joules_per_byte: Amount

    @staticmethod
    def of(profiles: Sequence[Profile]) -> PowerFigures[Floats]:
        """Return the figures of one device per profile."""
        powers = [profile.power for profile in profiles]
        return PowerFigures(
            np.array([profile.cores.value for profile in profiles]),
            np.array([power.idle_watts.value for power in powers]),
            np.array([power.core_watts.value for power in powers]),
            np.array([power.dram_watts.value for power in powers]),
            np.array([power.flash_joules_per_byte.value for power in powers]),
            np.array([power.link_joules_per_byte.value for power in powers]),
        )

    def busy_core_seconds(self, compute_seconds: Floats, serial_seconds: Floats) -> Floats:
        """Return core seconds of devices that compute, (.., devices): one core alone in so many of the seconds."""
        return np.asarray(self.cores * (compute_seconds - serial_seconds) + serial_seconds)

    def energy(
        self,
        elapsed_seconds: Amount | float,
        busy_core_seconds: Amount,
        busy_seconds: Amount,
        read_bytes: Amount | float,
        link_bytes: Amount | float,
    ) -> dict[str, Amount]:
        """Return joules per component, of each device by itself.

        Args:
            elapsed_seconds: how long devices were on, in device seconds.
            busy_core_seconds: sum over a device's cores of the seconds in which each was busy.
            busy_seconds: seconds in which any core was busy.
            read_bytes: read from flash.
            link_bytes: sent and received.
        """
        return {
            "idle": self.idle_watts * elapsed_seconds,
            "cpu": self.core_watts * busy_core_seconds,
            "dram": self.dram_watts * busy_seconds,
            "flash": self.flash_joules_per_byte * read_bytes,
            "link": self.link_joules_per_byte * link_bytes,
        }


def busy_core_seconds(profile: Profile, phases: Mapping[str, float]) -> float:
    """Return core seconds of compute phases: parallel ones keep all cores busy, serial ones one."""
    return sum(seconds * busy_cores(profile, phase) for phase, seconds in phases.items())


def busy_cores(profile: Profile, phase: str) -> float:
    """Return how many cores a phase keeps busy: none while reading or communicating."""
    if phase == READ or phase in COMMUNICATION:
        return 0.0
    return profile.cores.value if phase in PARALLEL_PHASES else 1.0


def device_energy(
    power: Power,
    elapsed_seconds: float,
    busy_core_seconds: float,
    busy_seconds: float,
    read_bytes: float,
    link_bytes: float,
) -> dict[str, float]:
    """Return joules per component of one device; see `PowerFigures.energy`."""
    figures = PowerFigures(
        1.0,  # how many cores are busy is in the seconds already
        *(power.idle_watts.value, power.core_watts.value, power.dram_watts.value),
        *(power.flash_joules_per_byte.value, power.link_joules_per_byte.value),
    )
    return figures.energy(elapsed_seconds, busy_core_seconds, busy_seconds, read_bytes, link_bytes)


def host_energy(
    profile: Profile,
    elapsed_seconds: float,
    busy_core_seconds: float,
    busy_seconds: float,
    link_bytes: float,
) -> dict[str, float]:
    """Return joules per component of a host, its chassis (fans, board, supply losses) included; see `device_energy`."""
    joules = device_energy(profile.power, elapsed_seconds, busy_core_seconds, busy_seconds, 0, link_bytes)
    watts = profile.chassis_watts.value if profile.chassis_watts is not None else 0.0
    return joules | {CHASSIS: watts * elapsed_seconds}


def sum_energy(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the joules of several devices or intervals together, component by component."""
    total: dict[str, float] = {}
    for part in parts:
        for component, joules in part.items():
            total[component] = total.get(component, 0.0) + joules
    return total


@dataclass(frozen=True)
class ActivityTotals:
    """What a device did in some spans, as `device_energy` wants it."""

    busy_core_seconds: float
    busy_seconds: float
    read_bytes: int
    link_bytes: int


def add_up(profile: Profile, spans: Iterable[Span]) -> ActivityTotals:
    """Return what the `spans` of one device add up to."""
    cores = busy = 0.0
    read = link = 0
    for span in spans:
        count = busy_cores(profile, span.phase)
        cores += count * span.seconds
        busy += span.seconds if count else 0.0
        read += span.bytes if span.phase == READ else 0
        link += span.bytes if span.phase in COMMUNICATION else 0
    return ActivityTotals(cores, busy, read, link)


def needed_drive_watts(speedup: float, energy_factor: float, baseline_watts: float, drives: int) -> float:
    """Return the watts that computing may add to each drive if a published energy factor is to hold.

    Energy per record is power / throughput, so power with computing drives = baseline x speed-up / energy factor.
    A negative result: no drive could do it, for the published figures imply less power than the baseline draws.

    Args:
        speedup: throughput over the baseline's.
        energy_factor: energy of the baseline over energy, for the same work.
        baseline_watts: of the whole server that trains with the same drives as plain storage.
        drives: how many compute.
    """
    return baseline_watts * (speedup / energy_factor - 1) / drives
