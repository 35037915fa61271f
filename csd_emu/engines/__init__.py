"""Engines: the ways in which a device of an array comes to run the agent."""

from __future__ import annotations

from csd_emu.array import ArrayConfig
from csd_emu.engines.base import DevicePlan, Engine, Fault, Handle, Surroundings
from csd_emu.engines.native import NativeEngine
from csd_emu.engines.with_host import WithHostNode
from csd_emu.paths import Paths
from csd_emu.remedies import INSTALL_LIBVIRT_PYTHON
from firmware_agent.errors import EnvironmentUnfit

__all__ = ["DevicePlan", "Engine", "Fault", "Handle", "NativeEngine", "Surroundings", "make_engine"]


def make_engine(config: ArrayConfig, paths: Paths) -> Engine:
    """Return the engine that `config` names, not yet prepared.

    Raises:
        EnvironmentUnfit: this machine lacks what the engine needs.
    """
    native = NativeEngine(paths.arrays)
    if config.engine == "native":
        return native
    drives = _qemu_engine(config, paths)
    return WithHostNode(drives, native) if config.host.trains else drives


def _qemu_engine(config: ArrayConfig, paths: Paths) -> Engine:
    try:
        from csd_emu.engines.qemu import QemuEngine
    except ModuleNotFoundError as error:
        if error.name not in ("libvirt", "libvirt_qemu"):
            raise
        raise EnvironmentUnfit(
            f"libvirt-python is not installed; {INSTALL_LIBVIRT_PYTHON}, or use --engine native"
        ) from error

    return QemuEngine(config, paths)
