"""`csd-emu up --plan`: which drive would go on which hypervisor."""

from __future__ import annotations

import math

import msgspec

from csd_emu.config.array_file import QEMU, ArrayConfig
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError


class PlannedHypervisor(msgspec.Struct, frozen=True):
    """One hypervisor of `csd-emu up --plan`.

    `memory_bytes` and `disk_bytes` are what drives may take there, null if nobody knows; `cores_bind` says that there
    may be no more drives than cores, `room` how many more fit, null without a limit. `problem`: why it cannot be used.
    """

    name: str
    uri: str
    cores: int
    memory_bytes: float | None
    disk_bytes: float | None
    cores_bind: bool
    room: int | None
    devices: list[str]
    problem: str


class VmScheduleReport(msgspec.Struct, frozen=True):
    """`csd-emu up --plan`: where the drives would go; `unplaced` ones would go nowhere, with what is wrong.

    `homeless` is the former name of `unplaced`; the next release is without it.
    """

    array: str
    spread: str
    hypervisors: list[PlannedHypervisor]
    unplaced: dict[str, str]
    homeless: dict[str, str]


def schedule_drives(config: ArrayConfig, paths: Paths) -> VmScheduleReport:
    """Ask the hypervisors of an array what is free, and return where its drives would go; nothing is started.

    Raises:
        ConfigurationError: the array has no virtual machines.
        EnvironmentUnfit: there is no room, or no hypervisor answers.
    """
    if QEMU not in config.engines:
        raise ConfigurationError(
            f"array {config.name!r}: has no virtual machines, so none to place; --plan is for engine: qemu"
        )
    from contextlib import closing

    from csd_emu.engines.qemu.qemu_engine import PlannedSite, QemuEngine  # libvirt

    def describe(site: PlannedSite) -> PlannedHypervisor:
        offer, room = site.offer, math.inf if site.offer is None else site.offer.room() - len(site.devices)
        return PlannedHypervisor(
            name=site.name,
            uri=site.uri,
            cores=0 if offer is None else offer.cores,
            memory_bytes=None if offer is None else offer.memory_bytes,
            disk_bytes=None if offer is None else offer.disk_bytes,
            cores_bind=offer is not None and offer.cores_bind,
            room=None if math.isinf(room) else max(0, int(room)),
            devices=list(site.devices),
            problem=site.problem,
        )

    with closing(QemuEngine(config, paths)) as engine:
        plan = engine.plan()
    sites = [describe(site) for site in plan.sites]
    return VmScheduleReport(config.name, config.spread, sites, plan.unplaced, plan.unplaced)
