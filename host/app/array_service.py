"""Drives of a run as they serve their host: made of the job's `host_io`, and what they write for the training."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from csd_emu.perfmodel.flash.flash_drive import ENGINE_LIMIT, FlashDrive
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.perfmodel.host_load import HostLoad
from csd_emu.perfmodel.storage.array_storage import ArrayStorage
from csd_emu.perfmodel.storage.drive_service import DriveService
from csd_emu.perfmodel.storage.latency_throttle import LatencyThrottle
from csd_emu.perfmodel.storage.load_source import ScheduledLoad
from csd_emu.perfmodel.storage.served_drive import ServedDrive
from csd_emu.profiles import get_profile
from csd_emu.profiles.flash_geometry import FlashParameters
from firmware_agent.common.slices import Array
from host.config.host_io_section import EngineLimit, resolve_loads
from host.core.records import EventKind, OnEvent
from host.training.accounting import Accountant
from host.training.job_inputs import JobData


def make_service(inputs: JobData, steady: bool = False) -> DriveService | None:
    """Return the drives of a run as they serve their host; None if the job has no `host_io`.

    Args:
        inputs: of the run.
        steady: whether each load lasts from begin to end, at its mean rate.
    """
    section, config = inputs.job.host_io, inputs.config
    if section is None:
        return None
    devices, own = config.list_devices(), section.policy
    policy = (ENGINE_LIMIT, int(own.engine_limit)) if isinstance(own, EngineLimit) else (str(own), 0)
    limit = None if section.protect is None else section.protect.p99
    loads = resolve_loads(section, devices, inputs.job.seed, inputs.job.mode)
    if steady:
        loads = {
            name: tuple(
                ScheduledLoad(replace(each.load, shape=(1,)) if isinstance(each.load, HostLoad) else each.load)
                for each in own
            )
            for name, own in loads.items()
        }
    profiles, drives = {device.name: get_profile(device.profile) for device in devices}, {}
    for name, profile in profiles.items():
        flash = profile.flash_parameters
        pages = section.namespace_pages(flash)
        # A larger one begins empty: full, it would leave collection too little room from the first write on.
        large, engine_rate = pages > flash.namespace_pages, profile.flash_bytes_per_second.value
        mapping = PageMapping(flash, pages, filled=False) if large else copy.deepcopy(_in_service(flash, pages))
        throttle = None if limit is None else LatencyThrottle(limit, engine_rate)
        drive = FlashDrive(flash, *policy, mapping)
        drives[name] = ServedDrive(drive, loads[name], engine_rate, throttle, limit or math.inf)
    host = get_profile(config.host.profile)
    return DriveService(ArrayStorage(drives), profiles, host, section.on_full == "stop")


@lru_cache(maxsize=4)  # it takes a second or so, and equal drives begin alike
def _in_service(flash: FlashParameters, pages: int) -> PageMapping:
    return PageMapping(flash, pages).age(0)


def write_own(
    request: JobData, accountant: Accountant, rounds: int, weights: Mapping[str, Array], on_event: OnEvent
) -> None:
    """Have drives write what the job says that they write before the next round: shards, or the model.

    Args:
        request: the run.
        accountant: has the array's time, and the drives.
        rounds: that are over; with a checkpoint after the last of them drives write the model.
        weights: of the model.
        on_event: told of writes for which there was no room.
    """
    section, every = request.job.host_io, request.job.checkpoint.every
    if section is None:
        return
    nodes, records = request.config.list_nodes(), request.records
    drives, sizes = accountant.service.storage.drives, dict[str, int]()
    if rounds == 0 and section.shard_writes:
        held = zip(nodes, records.private_sizes, strict=True)
        sizes = {node.name: (own + records.public_size) * records.record_bytes for node, own in held}
    elif rounds and section.checkpoint_writes and every and rounds % every == 0:
        sizes = dict.fromkeys(drives, sum(array.nbytes for array in weights.values()))
    own = {device: size for device, size in sizes.items() if device in drives}
    what = "model" if rounds else "shard"
    for device in accountant.service.write(own, accountant.array_seconds):
        on_event(device, EventKind.NOTE, f"its flash is full: there was no room for all of its {what}")
