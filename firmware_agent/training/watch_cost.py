"""Overhead of timing a step in the drive: reading the clock at each phase's end and reporting the seconds."""

from __future__ import annotations

from collections.abc import Callable

from firmware_agent.clock import Stopwatch
from firmware_agent.common.frames.step_frames import Stepped
from firmware_agent.common.wire import encode

_REPETITIONS = 64


def monitor_seconds(now: Callable[[], float]) -> float:
    """Return the seconds, by this clock, of what every synchronous step does only to be watched; a mean of many.

    Memory is read when the batch changes, not in every step.
    """
    watch = Stopwatch(now)
    begin = now()
    for _ in range(_REPETITIONS):
        watch.mark()
        for phase in ("forward", "backward", "encode"):
            watch.lap(phase)
        encode(Stepped(1, 1, 0.0, watch.take(), 1))
    return (now() - begin) / _REPETITIONS
