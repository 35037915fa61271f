"""Engines: the ways in which a device of an array comes to run the agent."""

from __future__ import annotations

from csd_emu.config.array_file import NATIVE, ArrayConfig
from csd_emu.config.engine_names import ENGINE
from csd_emu.engines.engine_protocol import DevicePlan, Engine, EngineClass, Fault, Handle, Surroundings
from csd_emu.engines.mixed_engine import MixedEngine, faults_of
from csd_emu.engines.native_engine import NativeEngine
from csd_emu.util.paths import Paths
from csd_emu.util.remedies import INSTALL_LIBVIRT_PYTHON
from firmware_agent.common.errors import EnvironmentUnfit

__all__ = ["DevicePlan", "Engine", "Fault", "Handle", "NativeEngine", "Surroundings", "faults_of", "make_engine"]

_NO_LIBVIRT = f"libvirt-python is not installed; {INSTALL_LIBVIRT_PYTHON}"
# Modules that an engine may lack on this machine -> what is missing, and the remedy.
_MISSING = {"libvirt": _NO_LIBVIRT, "libvirt_qemu": _NO_LIBVIRT}


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


def _make(name: str, config: ArrayConfig, paths: Paths) -> Engine:
    try:
        engine: EngineClass = ENGINE.load(name)
    except ModuleNotFoundError as error:
        if (remedy := _MISSING.get(error.name or "")) is None:
            raise
        raise EnvironmentUnfit(f"{remedy}, or use --engine native") from error
    return engine.of_array(config, paths)
