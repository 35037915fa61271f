"""Engines: the ways in which a device of an array comes to run the agent."""

from __future__ import annotations

from csd_emu.array import NATIVE, REMOTE, ArrayConfig, EngineName
from csd_emu.engines.base import DevicePlan, Engine, Fault, Handle, Surroundings
from csd_emu.engines.mixed import MixedEngine, faults_of
from csd_emu.engines.native import NativeEngine
from csd_emu.paths import Paths
from csd_emu.remedies import INSTALL_LIBVIRT_PYTHON
from csd_emu.shaping import make_shaper
from firmware_agent.errors import EnvironmentUnfit

__all__ = ["DevicePlan", "Engine", "Fault", "Handle", "NativeEngine", "Surroundings", "faults_of", "make_engine"]


def make_engine(config: ArrayConfig, paths: Paths) -> Engine:
    """Return the engine that `config` names, or several as one, not yet prepared.

    Raises:
        EnvironmentUnfit: this machine lacks what the engine needs.
        ConfigurationError: the inventory of its real drives cannot be read.
    """
    names = [name for name in config.engines if name != NATIVE or not config.host.trains]
    if config.host.trains:
        names.append(NATIVE)  # last, as the host is among the nodes
    engines = {name: _make(name, config, paths) for name in names}
    return engines[names[0]] if len(engines) == 1 else MixedEngine(engines)


def _make(name: EngineName, config: ArrayConfig, paths: Paths) -> Engine:
    if name == NATIVE:
        return NativeEngine(paths.arrays, make_shaper(config, paths.arrays))
    return _remote_engine(config, paths) if name == REMOTE else _qemu_engine(config, paths)


def _remote_engine(config: ArrayConfig, paths: Paths) -> Engine:
    from csd_emu.engines.remote import RemoteEngine  # SSH: nobody else has need of it
    from csd_emu.remote.server import server_id

    return RemoteEngine(config, server_id(paths.state))


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
