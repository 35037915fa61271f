"""`csd-emu up --stay`: an array that lives as long as a process in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from csd_emu.engines import Engine, make_engine
from csd_emu.paths import Paths
from csd_emu.progress import Progress
from host.array_state import ArrayBusy
from host.arrays import bring_up, sweep
from host.interrupts import INTERRUPTS
from host.lifecycle import ArrayRequest
from host.outputs import ArrayStatus
from host.presence import present

_LOOK_SECONDS = 2.0

OnChange = Callable[[str, bool], None]
OnUp = Callable[[ArrayStatus], None]


def keep_up(
    request: ArrayRequest,
    paths: Paths,
    progress: Progress,
    on_up: OnUp,
    on_change: OnChange,
    *works: Coroutine[Any, Any, None],
) -> None:
    """Bring an array up, and end it when this process is interrupted, which is the normal end.

    Args:
        request: what to bring up.
        paths: csd-emu's folders.
        progress: shown the stages.
        on_up: called when every drive has said hello.
        on_change: called with a drive's name whenever it has ended (False) or has come back (True).
        works: go on while the array is up; the first that fails ends it.

    Raises:
        CsdError: it did not come up, or something that it needs has failed; nothing is left of it.
    """
    status = bring_up(request, paths, progress)
    name = request.config.name
    with contextlib.closing(make_engine(request.config, paths)) as engine:
        try:
            with present(paths.presence(name)):
                on_up(status)
                INTERRUPTS.run(INTERRUPTS.wait(_watch(engine, name, on_change), *works))
        finally:
            with INTERRUPTS.deferred():
                _end(engine, name, paths)


async def _watch(engine: Engine, array: str, on_change: OnChange) -> None:
    known: Collection[str] = await asyncio.to_thread(engine.list_devices, array)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        there = await asyncio.to_thread(engine.list_devices, array)
        for drive in sorted({*known} ^ {*there}):
            on_change(drive, drive in there)
        known = there


def _end(engine: Engine, name: str, paths: Paths) -> None:
    """End the array; beside a run that still works on it end its drives, and leave the rest to the next `up`."""
    try:
        sweep([name], paths)
    except ArrayBusy:
        engine.sweep(name)
