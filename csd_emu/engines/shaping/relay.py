"""A shaped link without any right of its own: a process that passes TCP through token buckets.

``python -m csd_emu.engines.shaping.relay FOLDER`` starts it. Drives dial the relay, the relay dials their host; what it
passes stays encrypted from end to end. It reads its settings from the folder, again at
each SIGHUP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

import msgspec

from csd_emu.engines.shaping.shaper import Shape
from csd_emu.util.open_files import raise_open_files
from firmware_agent.common.errors import CsdError, EnvironmentUnfit


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
        """
        self._burst_seconds = burst_seconds
        self._seconds_per_byte = 1 / bytes_per_second
        # When what was asked for so far has passed, at the rate.
        self._free_at = now - burst_seconds

    def take(self, size_bytes: int, now: float) -> float:
        """Return when the last of `size_bytes`, asked for now, has passed: `now` at the earliest."""
        self._free_at = max(self._free_at, now - self._burst_seconds) + size_bytes * self._seconds_per_byte
        return max(now, self._free_at)

    def change(self, bytes_per_second: float, now: float) -> None:
        """Serve what has not passed yet, and all that is asked for later, at another rate."""
        old, self._seconds_per_byte = self._seconds_per_byte, 1 / bytes_per_second
        self._free_at = now + (self._free_at - now) * self._seconds_per_byte / old if self._free_at > now else now


# So much of one connection passes before it is another's turn.
CHUNK_BYTES = 16 << 10
# A timer of the event loop rounds up to a millisecond; the burst makes good what that costs, and a busy machine.
BURST_SECONDS = 0.005
_TIMER_SECONDS = 0.0005


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

    async def carry(self, source: asyncio.StreamReader, deliver: Callable[[bytes], Awaitable[None]]) -> None:
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
        if (left := moment - self._now()) > _TIMER_SECONDS:
            await self._sleep(left)


log = logging.getLogger(__name__)

SETTINGS_FILE, LOG_FILE = "relay.json", "relay.log"
READY = b"ready\n"
# The kernel keeps that much of a connection for us: a link whose sender outruns it must not look like a large one.
_BUFFER_BYTES = 64 << 10
# The loopback's own segments have 64 KiB, and a small buffer would stall for want of room for one.
_SEGMENT_BYTES = 8960
# Files of this process that are no connection's.
_BESIDE_FILES = 64
# One connection has two.
_CONNECTION_FILES = 2


class RelaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a relay listens, whom it dials, and how it shapes what passes."""

    listen_address: str
    target_address: str
    port: int
    bytes_per_second: float
    latency_seconds: float

    @property
    def shape(self) -> Shape:
        """Of each direction."""
        return Shape(self.bytes_per_second, self.latency_seconds)


class Relay:
    """Passes connections on to one target, all of them through the same two pipes; an async context manager."""

    def __init__(self, settings: RelaySettings) -> None:
        """Prepare; nothing is listened on yet."""
        self._settings = settings
        now = asyncio.get_running_loop().time
        self._up, self._down = Pipe(settings.shape, now), Pipe(settings.shape, now)
        self._server: asyncio.Server | None = None
        self._most = max(1, (raise_open_files() - _BESIDE_FILES) // _CONNECTION_FILES)
        self._connections = 0

    @property
    def port(self) -> int:
        """The port that is listened on."""
        if self._server is None:
            raise RuntimeError("the relay does not listen")
        return int(self._server.sockets[0].getsockname()[1])

    def change(self, shape: Shape) -> None:
        """Shape both directions anew."""
        self._up.change(shape)
        self._down.change(shape)

    async def __aenter__(self) -> Relay:
        settings = self._settings
        listening = _socket()
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((settings.listen_address, settings.port))
        except OSError as error:
            listening.close()
            raise EnvironmentUnfit(
                f"the relay cannot listen on {settings.listen_address}:{settings.port} ({error.strerror}); "
                "give the array another name, or its host another port"
            ) from error
        self._server = await asyncio.start_server(self._pass_on, sock=listening, limit=CHUNK_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection, if there is room for it."""
        with contextlib.closing(writer):
            if self._connections >= self._most:
                log.info("a connection was closed: there are %d", self._connections)
                return
            self._connections += 1
            try:
                await self._carry(reader, writer)
            finally:
                self._connections -= 1

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes both ways; when one way ends, the other one has nobody left to serve."""
        try:
            target = _socket()
            target.setblocking(False)
            await asyncio.get_running_loop().sock_connect(target, (self._settings.target_address, self._settings.port))
            host_reader, host_writer = await asyncio.open_connection(sock=target, limit=CHUNK_BYTES)
        except OSError as error:
            log.info("the host cannot be reached: %s", error)
            return
        with contextlib.closing(host_writer):
            await _first_of(
                self._up.carry(reader, _sender(host_writer)), self._down.carry(host_reader, _sender(writer))
            )


async def _first_of(*ways: Coroutine[None, None, None]) -> None:
    """Wait until one of two directions has ended, then end the other."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
            log.info("a connection broke: %s", error)


def _sender(writer: asyncio.StreamWriter) -> Callable[[bytes], Awaitable[None]]:
    async def send(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    return send


def _socket() -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
    return made


def read_settings(folder: Path) -> RelaySettings:
    """Return the settings in a relay's folder.

    Raises:
        EnvironmentUnfit: they cannot be read.
    """
    try:
        return msgspec.json.decode((folder / SETTINGS_FILE).read_bytes(), type=RelaySettings)
    except (OSError, msgspec.MsgspecError) as error:
        raise EnvironmentUnfit(f"{folder / SETTINGS_FILE}: cannot be read ({error}); start the array again") from error


async def serve(folder: Path) -> None:
    """Relay until SIGTERM; says so on standard output as soon as it listens.

    Raises:
        EnvironmentUnfit: it cannot listen, or has no settings.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    async with Relay(read_settings(folder)) as relay:
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: relay.change(read_settings(folder).shape))
        sys.stdout.buffer.write(READY)
        sys.stdout.close()
        await ended.wait()


def main() -> int:
    """Run the relay of the folder in the command line; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        asyncio.run(serve(Path(sys.argv[1])))
    except CsdError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
