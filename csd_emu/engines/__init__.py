"""Engines: the ways in which a device of an array comes to run the agent."""

from __future__ import annotations

from csd_emu.array import ArrayConfig
from csd_emu.engines.base import DevicePlan, Engine, Fault, Handle
from csd_emu.engines.native import NativeEngine
from csd_emu.paths import Paths

__all__ = ["DevicePlan", "Engine", "Fault", "Handle", "NativeEngine", "make_engine"]


def make_engine(config: ArrayConfig, paths: Paths) -> Engine:
    """Return the engine that `config` names, not yet prepared.

    Raises:
        EnvironmentUnfit: this machine lacks what the engine needs.
    """
    if config.engine == "native":
        return NativeEngine(paths.arrays)
    from csd_emu.engines.qemu import QemuEngine

    return QemuEngine(config, paths)
