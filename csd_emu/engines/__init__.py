"""Engines: the ways in which a device of an array comes to run the agent."""

from __future__ import annotations

from csd_emu.array import ArrayConfig
from csd_emu.engines.base import DevicePlan, Engine, Fault, Handle
from csd_emu.engines.native import NativeEngine
from csd_emu.paths import Paths
from firmware_agent.errors import EnvironmentUnfit

__all__ = ["DevicePlan", "Engine", "Fault", "Handle", "NativeEngine", "make_engine"]


def make_engine(config: ArrayConfig, paths: Paths) -> Engine:
    """Return the engine that `config` names, not yet prepared.

    Raises:
        EnvironmentUnfit: this machine lacks what the engine needs.
    """
    if config.engine == "native":
        return NativeEngine(paths.arrays)
    try:
        from csd_emu.engines.qemu import QemuEngine
    except ModuleNotFoundError as error:
        if error.name not in ("libvirt", "libvirt_qemu"):
            raise
        raise EnvironmentUnfit(
            "libvirt-python is not installed; run scripts/setup-python qemu, or use --engine native"
        ) from error

    return QemuEngine(config, paths)
