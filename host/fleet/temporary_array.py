"""An array for the time of one piece of work."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from csd_emu.engines import Engine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from host.core.interrupts import INTERRUPTS
from host.fleet.array_state import array_folder
from host.fleet.lifecycle import ArrayRequest, StartedArray, clear_array, start_array

if TYPE_CHECKING:
    from csd_emu.cycles.plugin_build import CyclePlugin
    from csd_emu.engines.qemu.qemu_engine import QemuEngine

T = TypeVar("T")
E = TypeVar("E", bound=Engine)


def run_on_machines(
    request: ArrayRequest,
    paths: Paths,
    progress: Progress,
    work: Callable[[StartedArray, QemuEngine], Awaitable[T]],
    plugin: CyclePlugin | None = None,
) -> T:
    """Start the VMs of `request`, do `work` on them, and end them whatever happens; return what `work` returns.

    With a `plugin` their cycles are counted.

    Raises:
        EnvironmentUnfit: QEMU or libvirt is missing, or another process uses an array of this name.
        DeviceError: a machine did not come up.
    """
    from csd_emu.engines.qemu.qemu_engine import QemuEngine  # needs libvirt

    return run_on_engine(QemuEngine(request.config, paths, plugin), request, paths, progress, work)


def run_on_engine(
    engine: E,
    request: ArrayRequest,
    paths: Paths,
    progress: Progress,
    work: Callable[[StartedArray, E], Awaitable[T]],
) -> T:
    """Start the array of `request` on `engine`, do `work` on it, end the array and close the engine in any case.

    Raises:
        EnvironmentUnfit: the engine lacks something, or another process uses an array of this name.
        DeviceError: a device did not come up.
    """
    with (
        array_folder(paths.arrays, request.config.name) as folder,
        contextlib.closing(engine),
    ):
        try:
            clear_array(engine, request.config.name, folder)
            engine.prepare(progress)
            return INTERRUPTS.run(_work(request, folder, engine, progress, work))
        finally:
            with INTERRUPTS.deferred():
                clear_array(engine, request.config.name, folder)


async def _work(
    request: ArrayRequest,
    folder: Path,
    engine: E,
    progress: Progress,
    work: Callable[[StartedArray, E], Awaitable[T]],
) -> T:
    async with contextlib.AsyncExitStack() as box:
        progress.stage(f"start {len(request.config.list_devices())} drives")
        started = await start_array(request, folder, engine, box, lambda *_: None)
        return await work(started, engine)
