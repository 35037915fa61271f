"""Bands of a round's seconds and joules: what they are with every figure of the profiles at an end of its band.

Seconds of drives are computed anew at each end. The array's are as much longer as the longest drive's, by what each
spent computing, reading and on the link: an approximation where these overlap, or where the host adds up for long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from csd_emu.config.array_file import ArrayConfig, LinkSection
from csd_emu.perfmodel.host_node import link_of
from csd_emu.perfmodel.power import MEASURED
from csd_emu.profiles import Profile, Sourced, get_profile
from csd_emu.profiles.profile import End
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.device_time import COUNTED, WALL, DeviceTime, growth
from host.core.figure_bands import Band
from host.core.records import DeviceRound, RoundRecord

_PHASES = PhaseSeconds.__struct_fields__
# Of all nodes together: no node is called so.
_ARRAY = ""


class RoundBands:
    """Gives each round of a run the bands of its figures."""

    def __init__(self, time: DeviceTime, profiles: Mapping[str, Profile], host: Profile, link: LinkSection) -> None:
        """Take what turns stopwatches into seconds, each device's profile, the server's and the link as configured."""
        self._low = _RoundAt("low", time, {**profiles, HOST: host}, link)
        self._high = _RoundAt("high", time, {**profiles, HOST: host}, link)

    def add_to(self, record: RoundRecord) -> RoundRecord:
        """Return the record with its bands, and those of its devices."""
        low, high = self._low.figures(record), self._high.figures(record)
        bands = {node: {name: Band(own[name], high[node][name]) for name in own} for node, own in low.items()}
        return msgspec.structs.replace(record, bands=bands.pop(_ARRAY), device_bands=bands)


class _RoundAt:
    """Figures of rounds at one end of all bands."""

    def __init__(self, end: End, time: DeviceTime, profiles: Mapping[str, Profile], link: LinkSection) -> None:
        self._end, self._time, self._moved_time, self._profiles = end, time, time.at(end), profiles
        self._moved = {device: profile.at(end) for device, profile in profiles.items()}
        rates = (link_of(link, each[HOST]).bytes_per_second for each in (profiles, self._moved))
        self._host_link = next(rates) / next(rates)
        self._phase_factors: dict[tuple[int, str, int], PhaseSeconds] = {}

    def figures(self, record: RoundRecord) -> dict[str, dict[str, float]]:
        """Return the figures of each node, and of all together under `_ARRAY`."""
        computed = {part.device: self._compute(part) for part in record.devices}
        before = max((_part_seconds(part, part.device_seconds.total) for part in record.devices), default=0.0)
        after = max((self._length(part, computed[part.device]) for part in record.devices), default=0.0)
        longer = growth(after, before)
        busier = {part.device: growth(computed[part.device], part.device_seconds.total) for part in record.devices}
        joules = {
            node: sum(own * self._share(node, name, longer, busier.get(node, 1.0)) for name, own in components.items())
            for node, components in record.node_joules.items()
        }
        seconds = {part.device: computed[part.device] for part in record.in_time}
        each = {"device_seconds": seconds, "energy_joules": joules}
        nodes = {node: {name: own[node] for name, own in each.items() if node in own} for node in {**joules, **seconds}}
        whole = {name: sum(own.values()) for name, own in each.items()}
        return nodes | {_ARRAY: {"array_seconds": record.array_seconds * longer, **whole}}

    def _compute(self, part: DeviceRound) -> float:
        """Return the seconds that a device computes in its part."""
        key = (id(self._profiles[part.device]), part.clock, part.batch_size)
        if (factors := self._phase_factors.get(key)) is None:
            factors = self._phase_factors[key] = self._time.phase_growth(
                self._moved_time, part.device, COUNTED if part.clock == COUNTED else WALL, part.batch_size
            )
        return math.fsum(getattr(part.device_seconds, phase) * getattr(factors, phase) for phase in _PHASES)

    def _length(self, part: DeviceRound, compute_seconds: float) -> float:
        """Return how long a device's part takes: its flash and link too."""
        own = self._change(part.device, lambda profile: profile.link_bytes_per_second)
        link = (min if self._end == "low" else max)(1 / own, self._host_link)
        flash = 1 / self._change(part.device, lambda profile: profile.flash_bytes_per_second)
        return _part_seconds(part, compute_seconds, flash, link)

    def _share(self, node: str, component: str, longer: float, busier: float) -> float:
        """Return what the joules of a node's component are multiplied by."""
        if component == MEASURED:
            return 1.0
        figure, seconds = _DRAWN[component]
        return self._change(node, figure) * {"elapsed": longer, "busy": busier}.get(seconds, 1.0)

    def _change(self, node: str, figure: Callable[[Profile], Sourced | None]) -> float:
        """Return a figure of a node's profile at this end over itself."""
        before, after = figure(self._profiles[node]), figure(self._moved[node])
        return 1.0 if before is None or after is None else growth(after.value, before.value)


def make_round_bands(config: ArrayConfig, time: DeviceTime) -> RoundBands:
    """Return what gives the rounds of a run on this array their bands; `time` is its accountant's."""
    profiles = {node.name: get_profile(node.profile) for node in config.list_nodes()}
    return RoundBands(time, profiles, get_profile(config.host.profile), config.link)


# Component -> the figure that its joules rest on, and the seconds, if any.
_DRAWN: Mapping[str, tuple[Callable[[Profile], Sourced | None], str]] = {
    "idle": (lambda profile: profile.power.idle_watts, "elapsed"),
    "cpu": (lambda profile: profile.power.core_watts, "busy"),
    "dram": (lambda profile: profile.power.dram_watts, "busy"),
    "flash": (lambda profile: profile.power.flash_joules_per_byte, ""),
    "link": (lambda profile: profile.power.link_joules_per_byte, ""),
    "chassis": (lambda profile: profile.chassis_watts, "elapsed"),
}


def _part_seconds(part: DeviceRound, compute_seconds: float, flash: float = 1.0, link: float = 1.0) -> float:
    return compute_seconds + part.read_seconds * flash + (part.receive_seconds + part.send_seconds) * link
