"""Power and energy over device seconds: idle + cores x activity + DRAM + flash per byte + link per byte.

Every watt comes from a profile, with its source. What rests on an assumed figure says so (`list_assumed`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from csd_emu.perfmodel.timeline import COMMUNICATION, READ, Span
from csd_emu.profiles import PARALLEL_PHASES, Figure, Power, Profile

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
    """Return joules per component.

    Args:
        power: of the profile.
        elapsed_seconds: how long the device was on, in device seconds.
        busy_core_seconds: sum over its cores of the seconds in which each was busy.
        busy_seconds: seconds in which any core was busy.
        read_bytes: read from flash.
        link_bytes: sent and received.
    """
    return {
        "idle": power.idle_watts.value * elapsed_seconds,
        "cpu": power.core_watts.value * busy_core_seconds,
        "dram": power.dram_watts.value * busy_seconds,
        "flash": power.flash_joules_per_byte.value * read_bytes,
        "link": power.link_joules_per_byte.value * link_bytes,
    }


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


@dataclass(frozen=True)
class PowerSteps:
    """Power over time as a step function: ``watts[component][i]`` holds from ``edges[i]`` to ``edges[i + 1]``.

    Attributes:
        edges: seconds, rising, one more than there are steps.
        watts: component -> watts of each step.
    """

    edges: tuple[float, ...]
    watts: Mapping[str, tuple[float, ...]]

    def energy(self) -> dict[str, float]:
        """Return the integral, in joules per component: what `device_energy` says for the same spans."""
        lengths = [end - begin for begin, end in pairwise(self.edges)]
        return {
            component: math.fsum(length * watts for length, watts in zip(lengths, steps, strict=True))
            for component, steps in self.watts.items()
        }

    def total_watts(self) -> tuple[float, ...]:
        """Return the watts of all components together, step by step."""
        return tuple(map(math.fsum, zip(*self.watts.values(), strict=True)))


def power_over_time(profile: Profile, spans: Sequence[Span], elapsed_seconds: float) -> PowerSteps:
    """Return the power of one device or host from 0 to `elapsed_seconds`; bytes are spread evenly over their span.

    A host's chassis is a component too. A span beyond `elapsed_seconds` extends the time shown, idle power included.
    """
    end = max((span.end_seconds for span in spans), default=0.0)
    edges = sorted({0.0, max(elapsed_seconds, end)} | {edge for span in spans for edge in _edges(span)})
    always = {"idle": profile.power.idle_watts.value}
    if profile.chassis_watts is not None:
        always[CHASSIS] = profile.chassis_watts.value
    steps: dict[str, list[float]] = {component: [] for component in (*COMPONENTS, *always)}
    for active in _active_spans(spans, edges):
        drawn = [_span_watts(profile, span) for span in active]
        for component, watts in steps.items():
            watts.append(always.get(component, 0.0) + sum(each.get(component, 0.0) for each in drawn))
    return PowerSteps(tuple(edges), {component: tuple(watts) for component, watts in steps.items()})


def list_assumed(profile: Profile) -> list[tuple[str, Figure]]:
    """Return the figures of a profile that nothing published supports, with their names."""
    return [(name, figure) for name, figure in profile.sources().items() if figure.assumed]


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


def _edges(span: Span) -> tuple[float, float]:
    begin, end = span.start_seconds, span.end_seconds
    if not span.bytes:
        return begin, end
    # Bytes that took next to no time still have their energy; it is drawn over a nanosecond.
    return begin, max(end, begin + 1e-9, math.nextafter(begin, math.inf))


def _span_watts(profile: Profile, span: Span) -> dict[str, float]:
    begin, end = _edges(span)
    power = profile.power
    if span.phase == READ:
        return {"flash": power.flash_joules_per_byte.value * span.bytes / (end - begin)}
    if span.phase in COMMUNICATION:
        return {"link": power.link_joules_per_byte.value * span.bytes / (end - begin)}
    cores = busy_cores(profile, span.phase)
    return {"cpu": power.core_watts.value * cores, "dram": power.dram_watts.value}


def _active_spans(spans: Sequence[Span], edges: Sequence[float]) -> Iterator[list[Span]]:
    """Yield the spans in progress between each edge and the next; a device has few at a time."""
    order = sorted(spans, key=lambda span: span.start_seconds)
    active: list[Span] = []
    position = 0
    for begin, _ in pairwise(edges):
        while position < len(order) and order[position].start_seconds <= begin:
            active.append(order[position])
            position += 1
        active = [span for span in active if _edges(span)[1] > begin]
        yield active
