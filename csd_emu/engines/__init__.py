"""Engines: the ways in which a device of an array comes to run the agent, one or several in an array."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Mapping

from csd_emu.config.array_file import NATIVE, ArrayConfig, Device
from csd_emu.config.engine_names import ENGINE, EngineName
from csd_emu.engines.engine_protocol import DevicePlan, Engine, EngineClass, Fault, Handle, Surroundings
from csd_emu.engines.native_engine import NativeEngine
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_emu.util.remedies import INSTALL_LIBVIRT_PYTHON
from firmware_agent.common.errors import EnvironmentUnfit


class MixedEngine(Engine):
    """Hands everything about a device to the engine that the device names."""

    def __init__(self, engines: Mapping[EngineName, Engine]) -> None:
        """Take the engines by name; they are closed with this one."""
        self._engines = dict(engines)
        self.faults = frozenset[Fault]().union(*(engine.faults for engine in self._engines.values()))

    def faults_of(self, device: Device) -> frozenset[Fault]:
        """Return what `inject` can do to this device."""
        return self._of(device).faults

    def surroundings(self, device: Device) -> Surroundings:
        """Return what the device will find around it."""
        return self._of(device).surroundings(device)

    def hypervisor_of(self, device: Device) -> str | None:
        """Return the name of the device's hypervisor, if it has one."""
        return self._of(device).hypervisor_of(device)

    def prepare(self, progress: Progress) -> None:
        """Make what the devices of each engine share."""
        for engine in self._engines.values():
            engine.prepare(progress)

    def start(self, plan: DevicePlan) -> Handle:
        """Start one device (see `Engine.start`)."""
        return self._of(plan.device).start(plan)

    def find(self, plan: DevicePlan) -> Handle | None:
        """Return the running device of this plan."""
        return self._of(plan.device).find(plan)

    def alive(self, handle: Handle) -> bool:
        """Return whether the device still exists."""
        return self._of(handle.plan.device).alive(handle)

    async def wait_ready(self, handle: Handle, hello: Awaitable[None], deadline: Deadline) -> None:
        """Wait for the agent's greeting (see `Engine.wait_ready`)."""
        await self._of(handle.plan.device).wait_ready(handle, hello, deadline)

    def inject(self, handle: Handle, fault: Fault) -> None:
        """Do `fault` to the device (see `Engine.inject`)."""
        self._of(handle.plan.device).inject(handle, fault)

    def stop(self, handle: Handle) -> None:
        """End the device."""
        self._of(handle.plan.device).stop(handle)

    def list_devices(self, array: str) -> list[str]:
        """Return the names of this array's devices that exist, engine after engine."""
        return list(dict.fromkeys(name for each in self._engines.values() for name in each.list_devices(array)))

    def list_arrays(self) -> list[str]:
        """Return the names of all arrays of which a device exists."""
        return sorted({name for engine in self._engines.values() for name in engine.list_arrays()})

    def sweep(self, array: str) -> list[str]:
        """End every device of this array; return their names. One engine's failure does not keep the others."""
        swept: list[str] = []
        with contextlib.ExitStack() as stack:
            for engine in reversed(self._engines.values()):
                stack.callback(lambda each: swept.extend(each.sweep(array)), engine)
        return list(dict.fromkeys(swept))

    def close(self) -> None:
        """Close all engines."""
        with contextlib.ExitStack() as stack:
            for engine in self._engines.values():
                stack.callback(engine.close)

    def _of(self, device: Device) -> Engine:
        return self._engines[device.engine]


def faults_of(engine: Engine, device: Device) -> frozenset[Fault]:
    """Return what `engine` can do to this device."""
    return engine.faults_of(device) if isinstance(engine, MixedEngine) else engine.faults


__all__ = ["DevicePlan", "Engine", "Fault", "Handle", "NativeEngine", "Surroundings", "faults_of", "make_engine"]

# Modules of libvirt-python, which an engine may lack on this machine.
_LIBVIRT = ("libvirt", "libvirt_qemu")


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
        if error.name not in _LIBVIRT:
            raise
        raise EnvironmentUnfit(
            f"libvirt-python is not installed; {INSTALL_LIBVIRT_PYTHON}, or use --engine native"
        ) from error
    return engine.of_array(config, paths)
