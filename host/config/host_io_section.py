"""Section `host_io` of a job file: what the host reads and writes on the drives while they train."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from csd_emu.config.array_file import REMOTE, Device
from csd_emu.perfmodel.block_trace import read_block_trace
from csd_emu.perfmodel.flash.flash_ceilings import flash_ceiling
from csd_emu.perfmodel.flash.flash_queues import Columns
from csd_emu.perfmodel.host_load import DIURNAL, LEAST_IOPS, HostLoad, LoadGenerator
from csd_emu.perfmodel.storage.load_source import ScheduledLoad
from csd_emu.profiles import get_profile
from csd_emu.profiles.flash_geometry import SECOND, FlashParameters
from csd_emu.util.config_files import Bytes, BytesPerSecond, Config, Seconds
from firmware_agent.common.errors import ConfigurationError, DataError
from host.config.sync_section import DeviceRef

_OF_LOADS = ("block", "read_share", "pattern", "gaps", "shape", "period", "span")
_Number = Annotated[int, Field(ge=1, le=10_000_000)]


class MomentSection(Config):
    """A moment of a run: in the array's time, or before a step of a synchronous job, or a round of a federated one."""

    seconds: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    step: _Number | None = None
    round: _Number | None = None

    def rules(self) -> Mapping[str, object]:
        """Return the rule of its keys."""
        given = [each for each in (self.seconds, self.step, self.round) if each is not None]
        return {"write one of seconds, step and round": len(given) != 1}

    def is_behind(self, other: MomentSection) -> bool:
        """Return whether this moment is behind another one, as far as they can be compared."""
        pairs = (self.seconds, other.seconds), (self.step, other.step), (self.round, other.round)
        return not any(own is not None and of is not None and own <= of for own, of in pairs)


class LoadSection(Config):
    """Commands of the host: a trace, or a load as fio has them.

    Attributes:
        trace: path, from the job file's folder, of a block trace: MSR Cambridge's CSV, or fio's iolog 2 or 3.
        devices: the drives that it goes to, or ``all``; each gets commands of its own, at random.
        begin: when; null: with the run.
        end: when; null: never.
        block: of each command.
        iops: commands a second on average, whatever the drive does.
        queue_depth: in place of `iops`, so many commands in the drive at any time.
        read_share: of the commands; the others write.
        pattern: ``random``, or ``sequential``: each begins where the one before it ended.
        gaps: between commands of `iops`: ``exponential``, or all ``equal``.
        shape: relative rates of equal parts of `period`, over and over: ``[1, 0, 0, 0]`` for bursts, ``diurnal`` for
            the 24 hours of a day.
        period: of the shape.
        span: share of the namespace that is used, from its beginning.
    """

    trace: str | None = Field(default=None, min_length=1, max_length=4096)
    devices: Literal["all"] | list[DeviceRef] = "all"
    begin: MomentSection | None = None
    end: MomentSection | None = None
    block: Bytes = Field(default="4 KiB")  # type: ignore[assignment]
    iops: float | None = Field(default=None, ge=LEAST_IOPS, le=1e9)
    queue_depth: int | None = Field(default=None, ge=1, le=65536)
    read_share: float = Field(default=1.0, ge=0, le=1, allow_inf_nan=False)
    pattern: Literal["random", "sequential"] = "random"
    gaps: Literal["exponential", "equal"] = "exponential"
    shape: Literal["diurnal"] | list[Annotated[int, Field(ge=0, le=8191)]] = Field(default_factory=lambda: [1])
    period: Seconds = Field(default="1 s")  # type: ignore[assignment]
    span: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)

    def rules(self) -> Mapping[str, object]:
        """Return the rules of loads."""
        rates = [each for each in (self.trace, self.iops, self.queue_depth) if each is not None]
        usual = LoadSection.model_validate({"iops": 1.0}) if self.trace is not None else self
        changed = [key for key in _OF_LOADS if getattr(self, key) != getattr(usual, key)]
        return {
            "write one of trace, iops and queue_depth": len(rates) != 1,
            f"{', '.join(changed)}: a trace says that itself; leave it out": bool(changed),
            "gaps, shape and period are those of iops; leave them out": (
                self.queue_depth is not None and {"gaps", "shape", "period"} & self.model_fields_set
            ),
            "devices: name one or more, or all": self.devices == [],
            "end must be later than begin": self.begin and self.end and not self.end.is_behind(self.begin),
            "end: the load would never begin; name a later moment": (
                self.end and (self.end.seconds == 0 or 1 in (self.end.step, self.end.round))
            ),
            "block must be a whole number of bytes, at least 1 B": self.block < 1 or self.block != int(self.block),
            "period must be 1 us or more, and no more than 10 days": not 1e-6 <= self.period <= 864_000,
            "shape: one of its rates must be more than 0, and their sum less than 8192": (
                self.shape != "diurnal" and not 0 < sum(map(int, self.shape)) < 8192
            ),
        }


class EngineLimit(Config):
    """The policy by which the drive's own engine reads and writes at a limited rate."""

    engine_limit: BytesPerSecond

    def rules(self) -> Mapping[str, object]:
        """Return the rule of its rate."""
        return {"engine_limit must be 1 B/s or more": self.engine_limit < 1}


class ProtectSection(Config):
    """What host commands are promised: the 99th percentile of each second's latencies."""

    p99: Seconds

    def rules(self) -> Mapping[str, object]:
        """Return the rule of its limit."""
        return {"p99 must be more than 0 s": self.p99 <= 0}


class HostIoSection(Config):
    """What the host asks of the drives while they train, and who goes first (see docs/host-io.md).

    Attributes:
        policy: of what waits for a die or channel: ``host_first``; ``fair``: first come, first served; or fair, with
            the engine's own commands at ``{engine_limit: 100 MB/s}``.
        protect: reads of the engine are slowed down so that this holds.
        on_full: what comes of a write that fails because the drive is full: the run goes on, or ends (``stop``).
        namespace: size of the namespace, times what the flash has room for: beyond 1 it is thin, and may fill up.
            Null: what the profile's over-provisioning leaves, which never does.
        loads: what the host asks.
        shard_writes: whether drives write their shards when the run begins.
        checkpoint_writes: whether drives write the model with each checkpoint of the run.
    """

    policy: Literal["host_first", "fair"] | EngineLimit = "host_first"
    protect: ProtectSection | None = None
    on_full: Literal["continue", "stop"] = "continue"
    namespace: float | None = Field(default=None, gt=0, le=16, allow_inf_nan=False)
    loads: list[LoadSection] = Field(default_factory=list, max_length=64)
    shard_writes: bool = False
    checkpoint_writes: bool = False

    def at(self, folder: Path) -> HostIoSection:
        """Return the section with absolute paths of traces, which lie in the job file's `folder`."""
        loads = [
            load if load.trace is None else load.model_copy(update={"trace": str((folder / load.trace).absolute())})
            for load in self.loads
        ]
        return self.model_copy(update={"loads": loads})

    def namespace_pages(self, flash: FlashParameters) -> int:
        """Return the logical pages of a drive of this flash."""
        return (
            flash.namespace_pages
            if self.namespace is None
            else max(flash.dies, int(flash.dies * flash.usable_pages_per_die * self.namespace))
        )


def decisive_profiles(profiles: Mapping[str, Mapping[str, Any]], section: HostIoSection | None) -> dict[str, Any]:
    """Return what of the profiles decides a run's trajectory, and of the traces; without `host_io` no flash does."""
    if section is None:
        return {name: {key: own for key, own in each.items() if key != "flash"} for name, each in profiles.items()}
    traces = [Path(load.trace).read_bytes() for load in section.loads if load.trace is not None]
    return {**profiles, "traces": [hashlib.sha256(trace).hexdigest() for trace in traces]}


def resolve_loads(
    section: HostIoSection, devices: Sequence[Device], seed: int, mode: str
) -> dict[str, tuple[ScheduledLoad, ...]]:
    """Return drive -> what the host asks of it; every load has been tried on the drive's flash.

    Args:
        section: of the job.
        devices: the drives of the array.
        seed: the job's.
        mode: the job's, whose steps or rounds loads begin and end with.

    Raises:
        ConfigurationError: a drive is not known or a real one, a trace is damaged or beyond the namespace, or the flash
            cannot serve the rates of all; the loads are named.
    """
    kind, other = ("step", "round") if mode == "sync" else ("round", "step")
    if real := [device.name for device in devices if device.engine == REMOTE]:
        raise ConfigurationError(
            f"host_io: {', '.join(real)}: what a real drive's host reads and writes is its own, and its counters tell "
            "it; leave host_io out"
        )
    loads: dict[str, list[tuple[int, ScheduledLoad]]] = {device.name: [] for device in devices}
    for place, load in enumerate(section.loads):
        key = f"host_io.loads[{place}]"
        if load.devices != "all" and (strange := set(load.devices) - loads.keys()):
            raise ConfigurationError(
                f"{key}.devices: {', '.join(sorted(strange))}: the array has no such drive; it has "
                f"{', '.join(sorted(loads)[:8])}{', ...' if len(loads) > 8 else ''}"
            )
        for which in ("begin", "end"):
            if getattr(getattr(load, which), other, None) is not None:
                raise ConfigurationError(
                    f"{key}.{which}: a job of mode {mode} has no {other}s; name a {kind}, or seconds"
                )
        for device in devices:
            if load.devices != "all" and device.name not in load.devices:
                continue
            flash = get_profile(device.profile).flash_parameters
            try:
                made = _make_load(load, flash, section.namespace_pages(flash), (seed, device.name, place))
            except (ConfigurationError, DataError) as error:
                raise ConfigurationError(f"{key}: {device.name}: {error}") from error
            loads[device.name].append((place, ScheduledLoad(made, **_moments(load))))
    for device in devices:
        flash = get_profile(device.profile).flash_parameters
        _check_sum(device.name, loads[device.name], flash, section.namespace_pages(flash))
    return {name: tuple(each for _, each in own) for name, own in loads.items()}


def _check_sum(
    device: str, loads: Sequence[tuple[int, ScheduledLoad]], flash: FlashParameters, namespace_pages: int
) -> None:
    """Return if a drive long in service can serve its loads with a rate together, each at its highest.

    Raises:
        ConfigurationError: it cannot; the loads, by their place in the job, their sum and the ceiling are named.
    """
    demands = [
        (f"host_io.loads[{place}]", each, *_demand(each.load, flash, namespace_pages))
        for place, each in loads
        if isinstance(each.load, HostLoad) and each.load.iops
    ]
    for step, seconds in sorted(
        {(one.begin_step, two.begin_seconds) for _, one, *_ in demands for _, two, *_ in demands}
    ):
        on = [
            (key, rate, share)
            for key, each, rate, share in demands
            if each.begin_step <= step < (each.end_step or float("inf"))
            and each.begin_seconds <= seconds < each.end_seconds
        ]
        asked, busy = sum(rate for _, rate, _ in on), sum(share for *_, share in on)
        if busy > 1:
            raise ConfigurationError(
                f"{', '.join(key for key, *_ in on)}: {device}: at their highest they ask for {asked:.0f} commands a "
                f"second, and of such ones its flash serves {asked / busy:.0f} at most, long in service, where random "
                "writes have pages copied: lower the rate, or have loads begin and end at other times"
            )


def _demand(load: HostLoad, flash: FlashParameters, namespace_pages: int) -> tuple[float, float]:
    """Return a load's highest rate, in commands a second, and the share of the flash that it takes.

    Written at random, blocks that are collected still hold the share p = exp((p - 1) N b / U): see docs/flash.md. It is
    looked for from below, not to the end where next to nothing is to spare.
    """
    closed, pages = flash.usable_pages_per_die + flash.pages_erased, -(-load.block_bytes // flash.page_bytes)
    ratio = flash.dies * closed / min(namespace_pages, flash.namespace_pages)
    held = 0.0 if load.sequential else reduce(lambda p, _: float(np.exp((p - 1) * ratio)), range(500), 0.0)
    rate = load.iops * max(load.shape) * len(load.shape) / sum(load.shape)
    return rate, rate / flash_ceiling(flash, load.read_share, pages, 1 / (1 - held)).iops


def _moments(load: LoadSection) -> dict[str, Any]:
    moments: dict[str, Any] = {}
    for key in ("begin", "end"):
        if (moment := getattr(load, key)) is not None and moment.seconds is not None:
            moments[f"{key}_seconds"] = moment.seconds
        elif moment is not None:
            moments[f"{key}_step"] = moment.step or moment.round
    return moments


def _make_load(
    load: LoadSection, flash: FlashParameters, namespace_pages: int, seeds: tuple[int, str, int]
) -> HostLoad | Columns:
    """Return a load for one drive, whose commands are drawn from the job's seed, the drive's name and its place.

    Raises:
        ConfigurationError: it is impossible on this flash.
        DataError: the trace is.
    """
    if load.trace is not None:
        return _read_trace(load.trace, flash.page_bytes, namespace_pages)
    if -(-int(load.block) // flash.page_bytes) > max(1, int(namespace_pages * load.span)):
        raise ConfigurationError(
            f"block: {int(load.block)} bytes do not fit into the span of {load.span:g} of the namespace, which has "
            f"{namespace_pages * flash.page_bytes} bytes; make block smaller or span larger"
        )
    seed, device, place = seeds
    drawn = np.random.SeedSequence([seed, zlib.crc32(device.encode()), place]).generate_state(1, np.uint64)
    made = HostLoad(
        block_bytes=int(load.block),
        span_pages=max(1, int(namespace_pages * load.span)),
        read_share=load.read_share,
        sequential=load.pattern == "sequential",
        iops=load.iops or 0.0,
        queue_depth=load.queue_depth or 0,
        poisson=load.gaps == "exponential",
        shape=DIURNAL if load.shape == "diurnal" else tuple(map(int, load.shape)),
        period_ns=round(load.period * SECOND),
        seed=int(drawn[0]),
    )
    LoadGenerator(made, flash, namespace_pages)
    return made


@lru_cache(maxsize=8)  # of equal drives a trace is read once
def _read_trace(path: str, page_bytes: int, namespace_pages: int) -> Columns:
    return read_block_trace(Path(path), page_bytes, namespace_pages)
