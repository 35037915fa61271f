"""Profile of a drive or host: its figures, each one with its source or `assumed`.

A VM under the counted clock is one core that retires one instruction per nanosecond. A profile's CPU is that core times
a scale, never a quota: serial work gets clock x instructions per cycle, parallel kernels also cores x efficiency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import msgspec

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.profiles.core_sharing import SERIAL_SHARES, phase_gain
from csd_emu.profiles.flash_geometry import FlashParameters
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.frames.frame_fields import PhaseSeconds

REFERENCE_HERTZ = 1e9
# Which phases are kernels that a drive spreads over its cores; the others are serial (interpreter, copying).
PARALLEL_PHASES = frozenset(SERIAL_SHARES)
ASSUMED = "assumed"
# Cycles may be off by so much, either way: the worst of 59 networks on three boards, each counted with the board's own
# core (docs/boards.md). Where the reference core's stand in for those of a profile's core, the band does not cover it:
# 1.09 to 1.32 times the seconds on two boards, nothing for a newport (docs/cycles.md).
CYCLE_BAND = 0.8, 1.25
# And the seconds of what several cores share: least, as the speed-ups of networks came out (docs/boards.md); most, if
# torch's threads gained as little as was counted in single runs (docs/cycles.md).
SHARING_BAND = 0.9, 1.9
# An end of the figures' bands: ``low`` has the fewest seconds and joules, ``high`` the most.
End = Literal["low", "high"]
# A point of the band of a host's ratio, and which drive the ratio counts in.
RatioName = Literal["low", "middle", "high"]
RATIO_DRIVE = "newport"


class Band(msgspec.Struct, frozen=True):
    """From the least to the most that a figure may be."""

    low: float
    high: float


class FigureBand(Band, frozen=True):
    """A figure's plausible range, and where it comes from."""

    source: str


@dataclass(frozen=True)
class Sourced:
    """A figure and where it comes from.

    Attributes:
        value: in the unit of its name.
        source: begins with ``assumed`` where nothing published could be read.
        band: its plausible range; None for a figure that is exact, or of which nothing is known.
    """

    value: float
    source: str
    band: FigureBand | None = None

    @property
    def assumed(self) -> bool:
        """Whether the figure is a choice of ours."""
        return self.source.startswith(ASSUMED)


class FigureEntry(msgspec.Struct, frozen=True):
    """One figure of a profile: `unit` is empty for a count or ratio, `assumed` where nothing published backs it.

    `band` is its plausible range, null of a figure without one.
    """

    figure: str
    value: float
    unit: str
    source: str
    assumed: bool
    band: FigureBand | None = None


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
        core: parameters of the core model that are not its defaults, by their names in
            `csd_emu.cycles.parameters.CoreParameters`; clock and bandwidth of DRAM are the figures above.
        flash: parameters of the flash model that are not its defaults, by their names in `FlashParameters`; its link is
            `nvme_bytes_per_second`.
        band_end: end of their bands at which all figures stand (see `at`); None for the figures themselves.
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
    core: Mapping[str, Sourced] = field(default_factory=dict)
    flash: Mapping[str, Sourced] = field(default_factory=dict)
    band_end: End | None = None

    @property
    def core_parameters(self) -> CoreParameters:
        """The core of the core model that stands for one of the drive's.

        Raises:
            ConfigurationError: it is a host's, or the model has none like it.
        """
        if self.kind == "host":
            raise ConfigurationError(
                f"profile {self.name}: is a host, and the core model has drives' alone; name a drive"
            )
        own = {"clock_megahertz": self.clock_hertz, "dram_megabytes_per_second": self.dram_bytes_per_second}
        figures = {name: round(figure.value / 1e6) for name, figure in own.items() if figure is not None}
        return CoreParameters(**figures | {name: round(figure.value) for name, figure in self.core.items()})

    @property
    def flash_parameters(self) -> FlashParameters:
        """The drive's flash, as it serves reads and writes of the host.

        Raises:
            ConfigurationError: the geometry is impossible.
        """
        own: Any = {name: figure.value for name, figure in self.flash.items()}
        return FlashParameters(link_bytes_per_second=round(self.nvme_bytes_per_second.value), **own)

    def scale(self, phase: str) -> float:
        """Return what the reference core's seconds of `phase` are multiplied by to become this drive's."""
        return 1.0 / (self.instructions_per_cycle.value * self._speed(phase))

    def cycle_scale(self, phase: str, dram_bytes_per_cycle: float) -> float:
        """Return what seconds of `phase` on a core of one nanosecond a cycle are multiplied by to become this drive's.

        Cores gain what `phase_gain` says of what one core asks of DRAM; without a bandwidth of DRAM, what they gain of
        instructions.
        """
        if self.dram_bytes_per_second is None:
            return self._cycle_error(phase) / self._speed(phase)
        dram_share = dram_bytes_per_cycle * self.clock_hertz.value / self.dram_bytes_per_second.value
        gain = phase_gain(phase, dram_share, int(self.cores.value))
        return self._cycle_error(phase) * REFERENCE_HERTZ / (self.clock_hertz.value * gain)

    def _cycle_error(self, phase: str) -> float:
        """Return what seconds of cycles are multiplied by at an end of the bands."""
        if self.band_end is None:
            return 1.0
        most = self.band_end == "high"
        shared = phase in PARALLEL_PHASES and self.cores.value > 1 and self.dram_bytes_per_second is not None
        return CYCLE_BAND[most] * (SHARING_BAND[most] if shared else 1.0)

    def _speed(self, phase: str) -> float:
        """Return the cycles of a phase in a nanosecond, if cores gain their number times the parallel efficiency."""
        gain = max(1.0, self.cores.value * self.parallel_efficiency.value)
        return self.clock_hertz.value / REFERENCE_HERTZ * (gain if phase in PARALLEL_PHASES else 1.0)

    def device_seconds(self, counted: PhaseSeconds) -> PhaseSeconds:
        """Return this drive's seconds for the reference core's `counted` seconds, phase by phase."""
        return PhaseSeconds(
            **{phase: getattr(counted, phase) * self.scale(phase) for phase in PhaseSeconds.__struct_fields__}
        )

    def at(self, end: End | None) -> Profile:
        """Return the profile with all figures, and the errors of cycles, at one end of their bands; itself at None."""
        moved: Profile = (
            self if end is None else replace(_moved(self, end), power=_moved(self.power, end), band_end=end)
        )
        return moved

    def entries(self) -> list[FigureEntry]:
        """Return every figure under its full name, for example ``power.idle_watts``, with its unit and source."""
        return [
            FigureEntry(
                figure=name,
                value=figure.value,
                unit=next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), ""),
                source=figure.source,
                assumed=figure.assumed,
                band=figure.band,
            )
            for name, figure in self._figures()
        ]

    def _figures(self) -> Iterator[tuple[str, Sourced]]:
        sections: dict[str, Profile | Power | HostRatio | None] = {"": self, "power.": self.power, "ratio.": self.ratio}
        for prefix, section in sections.items():
            for each in fields(section) if section is not None else ():
                if isinstance(figure := getattr(section, each.name), Sourced):
                    yield prefix + each.name, figure
        named = {"core": self.core, "flash": self.flash}
        yield from ((f"{key}.{name}", each) for key, section in named.items() for name, each in section.items())


def _moved(section: Any, end: End) -> Any:
    """Return a section with each figure at the end of its band that makes seconds and joules least, or most."""
    least = end == "low"
    figures = {each.name: getattr(section, each.name) for each in fields(section)}
    moved = {
        name: replace(figure, value=figure.band.low if name.endswith(_COSTS) == least else figure.band.high)
        for name, figure in figures.items()
        if isinstance(figure, Sourced) and figure.band is not None
    }
    return replace(section, **moved)


# Of these figures less makes seconds and joules less; of all others more does.
_COSTS = ("_seconds", "_watts", "_joules_per_byte")
_UNITS = {
    "_joules_per_byte": "J/B",
    "_bytes_per_second": "B/s",
    "_hertz": "Hz",
    "_bytes": "B",
    "_kibibytes": "KiB",
    "_nanoseconds": "ns",
    "_ns": "ns",
    "_seconds": "s",
    "_watts": "W",
}
