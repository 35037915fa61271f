"""`csd-emu up --stay`: an array that lives as long as a process in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

from csd_emu.engines import Engine, make_engine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import EnvironmentUnfit
from host.app.array_actions import ArrayStatus, bring_up, sweep
from host.core.console import console
from host.core.interrupts import INTERRUPTS
from host.fleet.array_state import ArrayBusy, ArrayState
from host.fleet.foreground_lock import present
from host.fleet.lifecycle import ArrayRequest


def print_change(drive: str, exists: bool) -> None:
    """Print that a drive of an array that is kept up has ended, or has come back."""
    console.print(f"{drive} {'is back' if exists else 'has ended'}")


_LOOK_SECONDS = 2.0

OnChange = Callable[[str, bool], None]
OnUp = Callable[[ArrayStatus], None]
Work = Callable[[], Coroutine[Any, Any, None]]


def keep_up(
    request: ArrayRequest,
    paths: Paths,
    progress: Progress,
    on_up: OnUp,
    on_change: OnChange,
    *works: Work,
) -> None:
    """Bring an array up, and end it when this process is interrupted, which is the normal end.

    Args:
        request: what to bring up.
        paths: csd-emu's folders.
        progress: shown the stages.
        on_up: called when every drive has said hello.
        on_change: called with a drive's name whenever it has ended (False) or has come back (True).
        works: begin when the array is up and go on as long; the first that fails ends it.

    Raises:
        CsdError: it did not come up, or something that it needs has failed; nothing is left of it.
    """
    with contextlib.closing(make_engine(request.config, paths)) as engine:
        try:
            status = bring_up(request, paths, progress)
            with present(paths.presence(request.config.name)):
                on_up(status)
                watching = partial(_watch, engine, request, paths, on_change)
                INTERRUPTS.run(_stay([watching, *works]))
        finally:
            with INTERRUPTS.deferred():
                _end(engine, request, paths)


async def _stay(works: Sequence[Work]) -> None:
    await INTERRUPTS.wait(*(work() for work in works))


async def _watch(engine: Engine, request: ArrayRequest, paths: Paths, on_change: OnChange) -> None:
    """Tell of changes until cancelled.

    Raises:
        EnvironmentUnfit: another command has ended the array.
    """
    array = request.config.name
    known: Collection[str] = await asyncio.to_thread(engine.list_devices, array)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if not _is_up(request, paths):
            raise EnvironmentUnfit(f"array {array!r} was ended by another command; start it again to go on")
        there = await asyncio.to_thread(engine.list_devices, array)
        for drive in sorted({*known} ^ {*there}):
            on_change(drive, drive in there)
        known = there


def _end(engine: Engine, request: ArrayRequest, paths: Paths) -> None:
    """End the array, if it is still the one that was brought up here.

    Beside a run that still works on it only its drives end; the rest is for the next `up` to clear away.
    """
    if not _is_up(request, paths):
        return
    try:
        sweep([request.config.name], paths)
    except ArrayBusy:
        engine.sweep(request.config.name)


def _is_up(request: ArrayRequest, paths: Paths) -> bool:
    state = ArrayState.load(paths.arrays / request.config.name)
    return state is not None and state.run == request.run
