"""A thread for tuners whose decisions take too long for the event loop; sessions' heartbeats continue meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from host.core.tuning.batch_tuner import BatchTuner, DeviceSelector, Floats, Retune


async def begin_choosing(tuner: BatchTuner) -> None:
    """Have a tuner that chooses devices think about its first step, beside the loop; another one has nothing to do."""
    if isinstance(tuner, DeviceSelector) and tuner.is_computing:
        with tuner.telling_later():
            await asyncio.to_thread(tuner.begin)


async def observe_step(tuner: BatchTuner, step: int, compute_seconds: Floats, steps_left: int | None) -> Retune | None:
    """Return what `BatchTuner.observe` does; one that chooses devices thinks beside the loop."""
    if not isinstance(tuner, DeviceSelector) or not tuner.is_computing:
        return tuner.observe(step, compute_seconds, steps_left)
    with tuner.telling_later():
        return await asyncio.to_thread(tuner.observe, step, compute_seconds, steps_left)


async def take_over(tuner: BatchTuner, restore: Callable[[], None]) -> None:
    """Call `restore`, which has the tuner load another's state; one that chooses devices repeats its thoughts."""
    if not isinstance(tuner, DeviceSelector):
        restore()
        return
    with tuner.telling_later():
        await asyncio.to_thread(restore)


async def change_devices(tuner: BatchTuner, change: Callable[[int], Retune], device: int) -> Retune:
    """Return what `change`, the tuner's `leave` or `join`, does; one that chooses devices thinks beside the loop."""
    if not isinstance(tuner, DeviceSelector) or not tuner.is_computing:
        return change(device)
    with tuner.telling_later():
        return await asyncio.to_thread(change, device)
