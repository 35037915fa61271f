"""What watching a step costs the drive: the clock is read at each phase's end, memory once, and both are reported."""

from __future__ import annotations

from collections.abc import Callable

from firmware_agent.clock import Stopwatch
from firmware_agent.memory import high_water_bytes
from firmware_agent.wire import Stepped, encode

_REPETITIONS = 64


def monitor_seconds(now: Callable[[], float]) -> float:
    """Return the seconds, by this clock, of all that a synchronous step does only to be watched; a mean of many."""
    watch = Stopwatch(now)
    begin = now()
    for _ in range(_REPETITIONS):
        watch.mark()
        for phase in ("forward", "backward", "encode"):
            watch.lap(phase)
        encode(Stepped(1, 1, 0.0, watch.take(), 1, high_water_bytes()))
    return (now() - begin) / _REPETITIONS
