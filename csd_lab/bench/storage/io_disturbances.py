"""Cases of `bench hypertune_under_io`: hosts read and write on some drives, whose steps take longer meanwhile.

A step streams its records: it reads them, then computes. What reads take under load is measured on `FlashDrive`; what
computing does, follows from the DRAM that cores and host share. The tuner knows neither.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from csd_emu.perfmodel.flash.flash_ceilings import flash_ceiling
from csd_emu.perfmodel.flash.flash_drive import FAIR, HOST_FIRST, FlashDrive
from csd_emu.perfmodel.flash.flash_queues import join, take
from csd_emu.perfmodel.host_load import DIURNAL, HostLoad, LoadGenerator
from csd_emu.profiles.core_sharing import phase_gain
from csd_emu.profiles.flash_geometry import FlashParameters
from csd_lab.bench.training.hypertune_case import WorldCase, make_case
from csd_lab.bench.training.hypertune_disturbances import DisturbanceCourse, Period
from csd_lab.bench.training.hypertune_drives import HOST_KIND, Seconds, WorldArray, draw_array, scaled, whole
from csd_lab.bench.training.hypertune_ranges import ArrayRanges, Range, WholeRange

IO_KINDS = ("steady", "bursts", "day")
# Loads are rounded to this share of what the flash serves, so that few are measured.
_GRID = 0.05
_READS, _READ_BYTES, _GAP_NS = 24, 1_048_576, 40_000_000
# Assumed of a host that writes: pages programmed per page written.
_AMPLIFICATION = 2.5


@dataclass(frozen=True)
class IoRanges:
    """What cases are drawn from; all of it is assumed.

    Attributes:
        read_share: seconds of reading a record from idle flash over those of computing it.
        load: of the flash's ceiling, at the load's highest (uniform); it is rounded to a twentieth.
        write_chance, written_share: whether the host writes too, and which share of its commands then.
        fair_chance: whether commands of host and engine are equal; the host goes first otherwise.
        memory_share: of the DRAM's bytes a second, those of a host at the ceiling.
        compute_memory_share: the same, of one core that trains.
        cores: of a drive.
        devices_share: so many of the drives at most are under load at once (uniform), at least one.
        loads, quiet_steps, steady_steps: of ``steady`` and ``bursts``: one after another, and how long in between.
        burst_steps: of ``bursts``: how long each of these loads lasts.
        short_burst_steps, short_gap_steps: the same of bursts of any drive beside them, and how long in between.
        hour_steps: of the one day of ``day``.
    """

    read_share: Range = (0.05, 1.0)
    load: Range = (0.2, 0.75)
    write_chance: float = 0.3
    written_share: float = 0.3
    fair_chance: float = 0.3
    memory_share: Range = (0.05, 0.5)
    compute_memory_share: Range = (0.05, 0.3)
    cores: int = 4
    devices_share: float = 0.34
    loads: WholeRange = (2, 3)
    quiet_steps: WholeRange = (100, 300)
    steady_steps: WholeRange = (150, 600)
    burst_steps: WholeRange = (60, 240)
    short_burst_steps: WholeRange = (1, 6)
    short_gap_steps: WholeRange = (20, 80)
    hour_steps: WholeRange = (20, 60)


@cache
def read_slowdowns(policy: str, load: float, written_share: float) -> Seconds:
    """Return what each of `_READS` reads of the engine takes under a share of the flash's ceiling, over one alone."""
    flash = FlashParameters(channels=2, dies_per_channel=4, blocks_per_plane=64, over_provisioning=0.28)
    ceiling = flash_ceiling(flash, 1 - written_share, 1, _AMPLIFICATION if written_share else 1.0)
    host = HostLoad(
        flash.page_bytes,
        flash.namespace_pages,
        1 - written_share,
        iops=max(load, 1e-3) * ceiling.iops,
        seed=int(load / _GRID + 0.5),
    )
    pages = _READ_BYTES // flash.page_bytes
    engine = HostLoad(flash.page_bytes, flash.namespace_pages, sequential=True, queue_depth=1)
    begins = _GAP_NS * (1 + np.arange(_READS))
    own = LoadGenerator(engine, flash).take_next(np.repeat(begins, pages))
    own["engine"][:] = True
    alone = FlashDrive(flash).serve(take(own, slice(pages)))["finish_ns"].max() - begins[0]
    commands = join(own, LoadGenerator(host, flash).take_until(int(begins[-1]) + _GAP_NS))
    ended = FlashDrive(flash, policy).serve(take(commands, np.argsort(commands["arrival_ns"], kind="stable")))
    ends = ended["finish_ns"][ended["engine"]].reshape(_READS, pages).max(axis=1)
    return np.asarray((ends - begins) / alone)


def memory_stretch(host_share: float, core_share: float, cores: int) -> float:
    """Return by how much computing takes longer where the host takes a share of the DRAM's bytes a second."""
    return phase_gain("forward", core_share, cores) / phase_gain("forward", core_share / (1 - host_share), cores)


@dataclass(frozen=True)
class _Drives:
    """What loads do to the drives of a case.

    Attributes:
        compute, reads: seconds of each device's batches without a load, computing and reading.
        policy, written_share, memory_share, core_share, cores: see `IoRanges`.
    """

    compute: tuple[Seconds, ...]
    reads: tuple[Seconds, ...]
    policy: str
    written_share: float
    memory_share: float
    core_share: float
    cores: int

    def seconds(self, loads: dict[int, float]) -> tuple[Seconds, ...]:
        """Return the seconds of each device's batches while some devices are under load."""
        curves = [compute + reads for compute, reads in zip(self.compute, self.reads, strict=True)]
        for device, load in loads.items():
            stretch = memory_stretch(load * self.memory_share, self.core_share, self.cores)
            slower = float(self.slowdowns(load).mean())
            curves[device] = self.compute[device] * stretch + self.reads[device] * slower
        return tuple(curves)

    def slowdowns(self, load: float) -> Seconds:
        """Return `read_slowdowns` of a load as it is rounded."""
        return read_slowdowns(self.policy, round(load / _GRID) * _GRID, self.written_share)


def draw_io_case(seed: int, kind: str, ranges: IoRanges | None = None, arrays: ArrayRanges | None = None) -> WorldCase:
    """Draw a case of a kind of load; all of it follows from the seed."""
    ranges = ranges or IoRanges()
    draw = np.random.default_rng([seed, 1 + IO_KINDS.index(kind), 35])
    array, drives = _with_reads(draw, draw_array(draw, arrays or ArrayRanges()), ranges)
    own = [number for number, each in enumerate(array.kinds) if each != HOST_KIND]
    if kind == "day":
        loads = _draw_day(draw, own, ranges)
    else:
        loads = _draw_loads(draw, own, ranges, ranges.burst_steps if kind == "bursts" else ranges.steady_steps)
    periods = tuple(Period(steps, drives.seconds(under), tuple(under)) for steps, under in loads)
    factors = _factors(draw, drives, loads, array.noise)
    if kind == "bursts":
        _add_short_bursts(draw, factors, drives, own, ranges)
    course = DisturbanceCourse(periods, factors, ())
    return make_case(array, lambda _: course, (1.0, np.ones(len(array.kinds))))


def _with_reads(draw: np.random.Generator, array: WorldArray, ranges: IoRanges) -> tuple[WorldArray, _Drives]:
    """Return an array whose drives read each record before they compute it, and what loads do to it."""
    share = scaled(draw, ranges.read_share)
    reads = tuple(
        np.zeros(len(curve)) if kind == HOST_KIND else share * (curve[-1] / len(curve)) * np.arange(1, len(curve) + 1)
        for curve, kind in zip(array.seconds, array.kinds, strict=True)
    )
    tables = {kind: table + own for kind, table, own in zip(array.kinds, array.tables, reads, strict=True)}
    drives = _Drives(
        array.seconds,
        reads,
        FAIR if draw.uniform() < ranges.fair_chance else HOST_FIRST,
        ranges.written_share if draw.uniform() < ranges.write_chance else 0.0,
        scaled(draw, ranges.memory_share),
        scaled(draw, ranges.compute_memory_share),
        ranges.cores,
    )
    return replace(array, seconds=drives.seconds({}), tables=tuple(tables[kind] for kind in array.kinds)), drives


def _chosen(draw: np.random.Generator, own: list[int], ranges: IoRanges) -> list[int]:
    """Draw which drives are under load."""
    most = max(1, int(ranges.devices_share * len(own)))
    return sorted(draw.permutation(own)[: whole(draw, (1, most))].tolist())


def _draw_loads(
    draw: np.random.Generator, own: list[int], ranges: IoRanges, lasting: WholeRange
) -> list[tuple[int, dict[int, float]]]:
    """Draw loads that come and go: (steps, device -> share of the ceiling) one after another."""
    loads: list[tuple[int, dict[int, float]]] = [(whole(draw, ranges.quiet_steps), {})]
    for _ in range(whole(draw, ranges.loads)):
        under = {device: draw.uniform(*ranges.load) for device in _chosen(draw, own, ranges)}
        loads += [(whole(draw, lasting), under), (whole(draw, ranges.quiet_steps), {})]
    return loads


def _draw_day(draw: np.random.Generator, own: list[int], ranges: IoRanges) -> list[tuple[int, dict[int, float]]]:
    """Draw loads that vary by the hour of the day, the same drives all the time."""
    peaks = {device: draw.uniform(*ranges.load) for device in _chosen(draw, own, ranges)}
    steps, first = whole(draw, ranges.hour_steps), int(draw.integers(len(DIURNAL)))
    hours = [DIURNAL[(first + hour) % len(DIURNAL)] for hour in range(len(DIURNAL))]
    return [(steps, {device: peak * hour / max(DIURNAL) for device, peak in peaks.items()}) for hour in hours]


def _factors(
    draw: np.random.Generator, drives: _Drives, loads: list[tuple[int, dict[int, float]]], noise: float
) -> Seconds:
    """Draw the noise of each step, (steps, devices); reads under load have that of the reads that were measured."""
    shape = sum(steps for steps, _ in loads), len(drives.reads)
    factors = np.exp(noise * draw.standard_normal(shape))
    first = 0
    for steps, under in loads:
        curves = drives.seconds(under)
        for device, load in under.items():
            slower = drives.slowdowns(load)
            share = drives.reads[device][-1] * slower.mean() / curves[device][-1]
            factors[first : first + steps, device] *= 1 + share * (draw.choice(slower, steps) / slower.mean() - 1)
        first += steps
    return factors


def _add_short_bursts(
    draw: np.random.Generator, factors: Seconds, drives: _Drives, own: list[int], ranges: IoRanges
) -> None:
    """Let hosts ask for a few steps' time now and then, of any drive."""
    quiet, at = drives.seconds({}), whole(draw, ranges.short_gap_steps)
    while at < len(factors):
        device, length = int(draw.choice(own)), whole(draw, ranges.short_burst_steps)
        slowed = drives.seconds({device: draw.uniform(*ranges.load)})[device]
        factors[at : at + length, device] *= slowed[-1] / quiet[device][-1]
        at += length + whole(draw, ranges.short_gap_steps)
