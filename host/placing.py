"""`csd-emu up --plan`: which drive would go on which hypervisor."""

from __future__ import annotations

import math

from csd_emu.array import QEMU, ArrayConfig
from csd_emu.paths import Paths
from firmware_agent.errors import ConfigurationError
from host.outputs import PlacementPlanReport, PlannedHypervisor


def plan_placement(config: ArrayConfig, paths: Paths) -> PlacementPlanReport:
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

    from csd_emu.engines.qemu import PlannedSite, QemuEngine  # libvirt

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
    return PlacementPlanReport(config.name, config.spread, [describe(site) for site in plan.sites], plan.homeless)
