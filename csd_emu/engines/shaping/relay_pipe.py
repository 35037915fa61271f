"""One direction of a relayed link: all connections pass one token bucket, and arrive a latency later, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from csd_emu.engines.shaping.shaper import Shape
from firmware_agent.common.errors import ConfigurationError


class TokenBucket:
    """Serves bytes in the order of asking, at one rate; all times are seconds of one clock that never runs back.

    Between any two moments s < t at most rate * (t - s) + burst bytes have passed. Who asks late, by no more than the
    burst lasts, loses nothing: what was not used meanwhile is made good.
    """

    def __init__(self, bytes_per_second: float, burst_seconds: float, now: float) -> None:
        """Begin with a full bucket.

        Args:
            bytes_per_second: of what passes.
            burst_seconds: at most the bytes of so many seconds pass at once after a rest.
            now: the clock.

        Raises:
            ConfigurationError: the rate is not positive, or the burst negative.
        """
        if burst_seconds < 0:
            raise ConfigurationError(f"a bucket's burst of {burst_seconds} s is negative")
        self._burst_seconds = burst_seconds
        self._seconds_per_byte = _inverse(bytes_per_second)
        # When what was asked for so far has passed, at the rate.
        self._free_at = now - burst_seconds

    def take(self, size_bytes: int, now: float) -> float:
        """Return when the last of `size_bytes`, asked for now, has passed: `now` at the earliest."""
        begin = max(self._free_at, now - self._burst_seconds)
        self._free_at = begin + size_bytes * self._seconds_per_byte
        return max(now, self._free_at)

    def change(self, bytes_per_second: float, now: float) -> None:
        """Serve what has not passed yet, and all that is asked for later, at another rate."""
        old, self._seconds_per_byte = self._seconds_per_byte, _inverse(bytes_per_second)
        self._free_at = now + (self._free_at - now) * self._seconds_per_byte / old if self._free_at > now else now


def _inverse(bytes_per_second: float) -> float:
    if not bytes_per_second > 0:
        raise ConfigurationError(f"a bucket's rate is {bytes_per_second!r}; it must be a positive number")
    return 1 / bytes_per_second


# So much of one connection passes before it is another's turn.
CHUNK_BYTES = 16 << 10
# A timer of the event loop rounds up to a millisecond; the burst makes good what that costs, and a busy machine.
BURST_SECONDS = 0.005
_TIMER_SECONDS = 0.0005


class StreamSource(Protocol):
    """What a pipe needs of `asyncio.StreamReader`."""

    async def read(self, size_bytes: int) -> bytes:
        """Return some bytes, at most so many; none at the end."""


class Pipe:
    """A bandwidth and a latency that connections share, in one direction.

    A connection is read from only when what it gave before has passed: each has at most one chunk here and what its
    latency holds, so that what waits, waits at its sender.
    """

    def __init__(
        self, shape: Shape, now: Callable[[], float], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Begin empty.

        Args:
            shape: of this direction.
            now: a clock that never runs back, in seconds.
            sleep: waits so many of its seconds.
        """
        self._now, self._sleep = now, sleep
        self._bucket = TokenBucket(shape.bytes_per_second, BURST_SECONDS, now())
        self._latency_seconds = shape.latency_seconds

    def change(self, shape: Shape) -> None:
        """Go on with another shape; what is on its way keeps its latency."""
        self._bucket.change(shape.bytes_per_second, self._now())
        self._latency_seconds = shape.latency_seconds

    async def carry(self, source: StreamSource, deliver: Callable[[bytes], Awaitable[None]]) -> None:
        """Carry one connection's bytes until they end, and all have arrived."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._arrive(under_way, deliver))
            while data := await source.read(CHUNK_BYTES):
                passed = self._bucket.take(len(data), self._now())
                under_way.put_nowait((passed + self._latency_seconds, data))
                await self._wait_until(passed)
            under_way.put_nowait((self._now(), b""))

    async def _arrive(
        self, under_way: asyncio.Queue[tuple[float, bytes]], deliver: Callable[[bytes], Awaitable[None]]
    ) -> None:
        while True:
            moment, data = await under_way.get()
            if not data:
                return
            await self._wait_until(moment)
            await deliver(data)

    async def _wait_until(self, moment: float) -> None:
        left = moment - self._now()
        if left > _TIMER_SECONDS:
            await self._sleep(left)
