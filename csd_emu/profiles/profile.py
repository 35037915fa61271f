"""Profile of a drive or host: its figures, each one with its source or `assumed`.

A VM under the counted clock is one core that retires one instruction per nanosecond. A profile's CPU is that core times
a scale, never a quota: serial work gets clock x instructions per cycle, parallel kernels also cores x efficiency.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

import msgspec

from csd_emu.profiles.core_sharing import phase_gain
from firmware_agent.common.frames.frame_fields import PhaseSeconds

REFERENCE_HERTZ = 1e9
# Which phases are kernels that a drive spreads over its cores; the others are serial (interpreter, copying).
PARALLEL_PHASES = frozenset({"forward", "backward", "update", "tail"})
ASSUMED = "assumed"


@dataclass(frozen=True)
class Sourced:
    """A figure and where it comes from; the source begins with ``assumed`` where nothing published could be read."""

    value: float
    source: str

    @property
    def assumed(self) -> bool:
        """Whether the figure is a choice of ours."""
        return self.source.startswith(ASSUMED)


class FigureEntry(msgspec.Struct, frozen=True):
    """One figure of a profile: `unit` is empty for a count or ratio, `assumed` where nothing published backs it."""

    figure: str
    value: float
    unit: str
    source: str
    assumed: bool


@dataclass(frozen=True)
class Power:
    """What a drive or a host draws.

    Attributes:
        idle_watts: always, while it is switched on.
        core_watts: per busy core, above idle.
        dram_watts: above idle, while any core is busy.
        flash_joules_per_byte: read from flash.
        link_joules_per_byte: through this end of the link, in either direction.
    """

    idle_watts: Sourced
    core_watts: Sourced
    dram_watts: Sourced
    flash_joules_per_byte: Sourced
    link_joules_per_byte: Sourced


@dataclass(frozen=True)
class HostRatio:
    """How many `newport` drives one host is worth in training; published figures imply a band, not a number."""

    low: Sourced
    middle: Sourced
    high: Sourced


@dataclass(frozen=True)
class Profile:
    """One class of drive, or of host.

    Attributes:
        name: as array files write it.
        kind: ``drive``, or ``host`` for the server that holds the drives.
        cores: CPU cores.
        clock_hertz: their clock.
        instructions_per_cycle: of training code on one core, in instructions of the reference core.
        parallel_efficiency: share of `cores` that parallel kernels gain, 0 to 1; of ``core_model: instructions``, and
            of cycles without a bandwidth of DRAM.
        dram_bytes: memory.
        dram_bytes_per_second: of that memory, for all cores together; None for a bandwidth that limits nothing.
        flash_bytes_per_second: sequential reads by the drive's own engine; by a host, of all its drives together.
        flash_latency_seconds: of one read.
        link_bytes_per_second: of messages between host and drives (TCP tunnelled through NVMe), this end, each way.
        link_latency_seconds: this end's part of a message's latency.
        nvme_bytes_per_second: plain NVMe reads by the host, this end of the PCIe link.
        power: what it draws.
        ratio: of a host, its speed in drives; None for a drive.
        chassis_watts: of a host, fans, board and supply losses; None for a drive.
    """

    name: str
    kind: Literal["drive", "host"]
    cores: Sourced
    clock_hertz: Sourced
    instructions_per_cycle: Sourced
    parallel_efficiency: Sourced
    dram_bytes: Sourced
    flash_bytes_per_second: Sourced
    flash_latency_seconds: Sourced
    link_bytes_per_second: Sourced
    link_latency_seconds: Sourced
    nvme_bytes_per_second: Sourced
    power: Power
    ratio: HostRatio | None = None
    chassis_watts: Sourced | None = None
    dram_bytes_per_second: Sourced | None = None

    def scale(self, phase: str) -> float:
        """Return what the reference core's seconds of `phase` are multiplied by to become this drive's."""
        return 1.0 / (self.instructions_per_cycle.value * self._speed(phase))

    def cycle_scale(self, phase: str, dram_bytes_per_cycle: float) -> float:
        """Return what seconds of `phase` on a core of one nanosecond a cycle are multiplied by to become this drive's.

        Cores gain what `phase_gain` says of what one core asks of DRAM; without a bandwidth of DRAM, what they gain of
        instructions.
        """
        if self.dram_bytes_per_second is None:
            return 1.0 / self._speed(phase)
        dram_share = dram_bytes_per_cycle * self.clock_hertz.value / self.dram_bytes_per_second.value
        gain = phase_gain(phase, dram_share, int(self.cores.value))
        return REFERENCE_HERTZ / (self.clock_hertz.value * gain)

    def _speed(self, phase: str) -> float:
        """Return the cycles of a phase in a nanosecond, if cores gain their number times the parallel efficiency."""
        gain = max(1.0, self.cores.value * self.parallel_efficiency.value)
        return self.clock_hertz.value / REFERENCE_HERTZ * (gain if phase in PARALLEL_PHASES else 1.0)

    def device_seconds(self, counted: PhaseSeconds) -> PhaseSeconds:
        """Return this drive's seconds for the reference core's `counted` seconds, phase by phase."""
        return PhaseSeconds(
            **{phase: getattr(counted, phase) * self.scale(phase) for phase in PhaseSeconds.__struct_fields__}
        )

    def entries(self) -> list[FigureEntry]:
        """Return every figure under its full name, for example ``power.idle_watts``, with its unit and source."""
        return [
            FigureEntry(name, figure.value, unit_of(name), figure.source, figure.assumed)
            for name, figure in self._figures()
        ]

    def _figures(self) -> Iterator[tuple[str, Sourced]]:
        sections: dict[str, Profile | Power | HostRatio | None] = {"": self, "power.": self.power, "ratio.": self.ratio}
        for prefix, section in sections.items():
            for field in fields(section) if section is not None else ():
                figure = getattr(section, field.name)
                if isinstance(figure, Sourced):
                    yield prefix + field.name, figure


_UNITS = {
    "_joules_per_byte": "J/B",
    "_bytes_per_second": "B/s",
    "_hertz": "Hz",
    "_bytes": "B",
    "_seconds": "s",
    "_watts": "W",
}


def unit_of(name: str) -> str:
    """Return the unit that the name of a figure ends in, empty for a count or a ratio."""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")
