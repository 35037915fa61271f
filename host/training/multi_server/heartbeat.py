"""Heartbeats in the store: a server that stops counting is lost, even if no connection to it has broken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from host.training.multi_server.store.store_messages import Counters, StoreLost

_BEATS_PER_SILENCE = 8


class FailureDetector:
    """Who has not been heard of for too long. Pure: counters and a clock in, names out."""

    def __init__(self, names: Sequence[str], limit_seconds: float, now: float) -> None:
        """Begin to listen to `names` at the time `now`, in seconds; all may be silent for `limit_seconds`."""
        self._limit_seconds = limit_seconds
        self._heard: dict[str, tuple[int | None, float]] = dict.fromkeys(names, (None, now))

    def hear(self, counts: Sequence[int], now: float) -> list[str]:
        """Take everyone's counters, in order, and return who is silent for too long."""
        for name, count in zip(self._heard, counts, strict=True):
            if self._heard[name][0] != count:
                self._heard[name] = (count, now)
        return [name for name, (_, last) in self._heard.items() if now - last > self._limit_seconds]


def beat_key(run: str, name: str) -> str:
    """Return the counter of one server."""
    return f"{run}/beat/{name}"


def host_key(run: str, server: str) -> str:
    """Return the counter of a server's host."""
    return beat_key(run, f"host/{server}")


def watch_others(
    store: Counters,
    run: str,
    names: Sequence[str],
    own: int,
    silence_seconds: float,
    lost: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Count up one's own counter from a thread; `lost` is set once another one stands still.

    It is also set if the store cannot be reached, because then the others do not hear from this one either. A store
    behind a broken link raises no error and never answers; a second thread watches for that.
    """
    others = [name for rank, name in enumerate(names) if rank != own]
    answered = [clock()]

    def beat() -> None:
        silence = FailureDetector(others, silence_seconds, clock())
        try:
            while not lost.wait(silence_seconds / _BEATS_PER_SILENCE):
                store.add(beat_key(run, names[own]), 1)
                counts = [store.add(beat_key(run, name), 0) for name in others]
                answered[0] = clock()
                if silence.hear(counts, answered[0]):
                    lost.set()
        except StoreLost:
            lost.set()

    def watch() -> None:
        while not lost.wait(silence_seconds / _BEATS_PER_SILENCE):
            if clock() - answered[0] > silence_seconds:
                lost.set()

    for each in (beat, watch):
        threading.Thread(target=each, name=f"beats-{each.__name__}", daemon=True).start()
