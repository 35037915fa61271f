"""Tuners that think for longer than a loop may stand still: sessions' heartbeats go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from host.tuning.base import Chooser, Floats, Retune, Tuner


async def begin_choosing(tuner: Tuner) -> None:
    """Have a tuner that chooses devices think about its first step, beside the loop; another one has nothing to do."""
    if isinstance(tuner, Chooser) and tuner.pondering:
        with tuner.telling_later():
            await asyncio.to_thread(tuner.begin)


async def observe_step(tuner: Tuner, step: int, compute_seconds: Floats, steps_left: int | None) -> Retune | None:
    """Return what `Tuner.observe` does; one that chooses devices thinks beside the loop."""
    if not isinstance(tuner, Chooser) or not tuner.pondering:
        return tuner.observe(step, compute_seconds, steps_left)
    with tuner.telling_later():
        return await asyncio.to_thread(tuner.observe, step, compute_seconds, steps_left)


async def take_over(tuner: Tuner, restore: Callable[[], None]) -> None:
    """Call `restore`, which has the tuner load another's state; one that chooses devices repeats its thoughts."""
    if not isinstance(tuner, Chooser):
        restore()
        return
    with tuner.telling_later():
        await asyncio.to_thread(restore)


async def change_devices(tuner: Tuner, change: Callable[[int], Retune], device: int) -> Retune:
    """Return what `change`, the tuner's `leave` or `join`, does; one that chooses devices thinks beside the loop."""
    if not isinstance(tuner, Chooser) or not tuner.pondering:
        return change(device)
    with tuner.telling_later():
        return await asyncio.to_thread(change, device)
