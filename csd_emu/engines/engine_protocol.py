"""Protocol of an engine: it turns a device of an array into something that runs the agent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from csd_emu.config.array_file import ArrayConfig, Device
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import BootTimeout, DeviceError, DeviceLost
from firmware_agent.common.handover import FAILED_MARKER

_LIVENESS_SECONDS = 0.2
LAST_LINES = 15
# What is read of a console for them.
_LAST_BYTES = 64 << 10


class Fault(StrEnum):
    """What can be done to a drive: some by its engine, the rest by the run and its agent."""

    KILL = "kill"
    FREEZE = "freeze"
    THAW = "thaw"
    CUT = "cut"
    HEAL = "heal"
    SLOW = "slow"
    CORRUPT = "corrupt"
    FILL = "fill"
    CLEAR = "clear"
    REVIVE = "revive"


# What an engine can do at most; the rest is done by the run, or by the drive's agent.
ENGINE_FAULTS = frozenset({Fault.KILL, Fault.FREEZE, Fault.THAW, Fault.CUT, Fault.HEAL})


class HypervisorLost(DeviceLost):
    """Raised when a device's hypervisor is gone, full or too slow while others go on: the array does without it."""


@dataclass(frozen=True)
class DevicePlan:
    """Everything about one start of a device, fixed before anything starts.

    Attributes:
        array: name of the array.
        run: tag of this `up`, the same for all its devices.
        device: which drive.
        folder: the device's own folder; its console log goes there.
        shard: the archive that becomes its NVMe namespace.
        identity: the archive with its identity.
    """

    array: str
    run: str
    device: Device
    folder: Path
    shard: Path
    identity: Path

    @property
    def console(self) -> Path:
        """Where the device's console is logged."""
        return self.folder / "console.log"

    @property
    def marks(self) -> Path:
        """Where a virtual machine whose cycles are counted has the counters at its marks written."""
        return self.folder / "marks.jsonl"


@dataclass(frozen=True)
class Handle:
    """A started device: its plan, and its name or number in the engine's world."""

    plan: DevicePlan
    reference: str


class Surroundings(NamedTuple):
    """What a device finds around it.

    Attributes:
        clock: what its stopwatch shows.
        host_address: under which address it reaches the host's loopback interface.
        listen_address: on which address the host has to listen for that; None for the array's own.
    """

    clock: str
    host_address: str
    listen_address: str | None = None


class Engine(Protocol):
    """Starts and stops devices. All calls block; the host makes them in threads."""

    faults: frozenset[Fault]
    """What `inject` can do here."""

    def surroundings(self, device: Device) -> Surroundings:
        """Return what the device will find around it."""

    def hypervisor_of(self, device: Device) -> str | None:
        """Return the name of the hypervisor on which the device is placed; None of what is no virtual machine."""
        return None

    def prepare(self, progress: Progress) -> None:
        """Make what all devices share, such as image and template; no device runs afterwards.

        Raises:
            EnvironmentUnfit: this machine cannot run the engine.
        """

    def start(self, plan: DevicePlan) -> Handle:
        """Start one device; in the folder of one that has ended nothing but shard and identity are used again.

        Raises:
            DeviceError: it could not be started; nothing of it is left.
        """

    def find(self, plan: DevicePlan) -> Handle | None:
        """Return the running device of this plan, whichever process started it."""

    def alive(self, handle: Handle) -> bool:
        """Return whether the device still exists."""

    async def wait_ready(self, handle: Handle, hello: Awaitable[None], deadline: Deadline) -> None:
        """Wait until `hello` is done: the agent's greeting, with its shard's manifest checked.

        Raises:
            DeviceLost: the device ended before.
            BootTimeout: the deadline passed.
        """
        greeting = asyncio.ensure_future(hello)
        name, console = handle.plan.device.name, handle.plan.console
        try:
            while not greeting.done():
                await asyncio.wait({greeting}, timeout=min(_LIVENESS_SECONDS, deadline.left_seconds))
                if greeting.done():
                    break
                if not await asyncio.to_thread(self.alive, handle):
                    raise DeviceLost(
                        f"{name} ended before its agent said hello; its last words:\n{last_words(console)}"
                    )
                if FAILED_MARKER in (words := last_words(console)):
                    raise DeviceLost(f"{name}: its agent ended:\n{words}")
                if deadline.expired:
                    raise BootTimeout(
                        f"{name} did not say hello in {deadline.seconds:.0f} s; its last words:\n{last_words(console)}"
                    )
            greeting.result()
        finally:
            greeting.cancel()

    def inject(self, handle: Handle, fault: Fault) -> None:
        """Do `fault`, one of `faults`, to the device; one that is so already stays so.

        Raises:
            DeviceError: it does not run, or this engine cannot do that.
        """

    def stop(self, handle: Handle) -> None:
        """End the device; one that is gone already is a success."""

    def list_devices(self, array: str) -> list[str]:
        """Return the names of this array's devices that exist, found without any state file.

        Raises:
            EnvironmentUnfit: they do, but what led to them has gone, and they cannot be reached any more.
        """

    def list_arrays(self) -> list[str]:
        """Return the names of all arrays of which a device exists, found without any state file."""

    def sweep(self, array: str) -> list[str]:
        """End every device of this array, found without any state file; return their names."""

    def close(self) -> None:
        """Give back connections and helpers; running devices go on."""


class EngineClass(Protocol):
    """A class that is registered in `csd_emu.config.engine_names.ENGINE`; its instances are `Engine`s."""

    def of_array(self, config: ArrayConfig, paths: Paths) -> Engine:
        """Return the engine of an array (a class method), not yet prepared.

        Raises:
            EnvironmentUnfit: this machine lacks what the engine needs.
            ConfigurationError: a file that the array names cannot be read.
        """


def must_run(handle: Handle, fault: Fault) -> DeviceError:
    """Return the error of a fault for a device that does not run."""
    return DeviceError(f"{handle.plan.device.name} does not run, so {fault.value} cannot be done to it")


def not_from_outside(handle: Handle, fault: Fault) -> DeviceError:
    """Return the error of a fault that has to be done by the host of a run."""
    return DeviceError(
        f"{handle.plan.device.name}: {fault.value} cannot be done to a process from outside: it has no network of its "
        "own; the host of a run can do it"
    )


def last_words(console: Path) -> str:
    """Return the last lines of a device's console, for an error message."""
    try:
        with open(os.open(console, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            return last_lines(file.read(_LAST_BYTES).decode("utf-8", "replace"))
    except OSError:
        return last_lines("")


def last_lines(text: str) -> str:
    """Return the last lines of what a console said, for an error message."""
    said = [f"    {line}" for line in text.splitlines() if line.strip()]
    return "\n".join(said[-LAST_LINES:]) or "(no console output)"
