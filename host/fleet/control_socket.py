"""Control socket of a run, for `csd-emu inject`: one line of JSON there, one back, over a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from csd_emu.engines import Fault
from firmware_agent.common.atomic_files import make_folder, shared_mode
from firmware_agent.common.errors import CsdError, DeviceError, EnvironmentUnfit, ProtocolError
from firmware_agent.common.frames.frame_fields import Name, Text
from host.core.interrupts import end_tasks

MAX_LINE_BYTES = 32 << 10
# So many requests are handled at once; who comes meanwhile is told to come again.
MOST_TALKS = 16
_BUSY_SECONDS = 1.0
# Whoever connects has so long to say what they want.
_REQUEST_SECONDS = 10.0
# Answers that are ready when the run ends have so long to be taken.
_GRACE_SECONDS = 1.0


class ControlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Do `harm` to `device`; with a `note`, only write this down: another does it. `weight` is for ``slow`` alone."""

    device: Name
    harm: Fault
    weight: Annotated[int, Meta(ge=0, le=10_000)] = 0
    note: Text = ""


class ControlReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came of it; with an `error` nothing did."""

    detail: Text = ""
    error: Text = ""


class NoRun(EnvironmentUnfit):
    """Raised when no run listens."""


Handler = Callable[[ControlRequest], Awaitable[str]]


class ControlServer:
    """The run's end: hands requests to a handler while it is open; an async context manager."""

    def __init__(self, path: Path, handle: Handler) -> None:
        """Prepare to listen at `path`; the caller knows that no other process does (it holds the array's lock).

        Args:
            path: of the socket; one that a killed run left is replaced.
            handle: does what is asked for and returns what came of it, or raises a `CsdError`.
        """
        self._path, self._handle = path, handle
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ControlServer:
        make_folder(self._path.parent, shared_mode())
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        try:
            os.fchmod(listener.fileno(), 0o600)  # before there is a name under which others could find it
            with _short(self._path) as address:
                listener.bind(address)
            self._server = await asyncio.start_unix_server(self._talk, sock=listener, limit=MAX_LINE_BYTES)
        except BaseException:
            listener.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close; the caller has seen to it that every request has its answer or its error by now."""
        self._path.unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()
        if talks := set(self._talks):
            await asyncio.wait(talks, timeout=_GRACE_SECONDS)
            await end_tasks(talks)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, busy = asyncio.current_task(), len(self._talks) >= MOST_TALKS
        if task is not None and not busy:
            self._talks.add(task)
            task.add_done_callback(self._talks.discard)
        try:
            with contextlib.suppress(ConnectionError):
                answer = await (_refuse(reader) if busy else self._answer(reader))
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> ControlReply:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                line = await reader.readline()
        except TimeoutError:
            return ControlReply(error=f"no request came within {_REQUEST_SECONDS:.0f} s")
        except ValueError:
            return ControlReply(error=f"a request has at most {MAX_LINE_BYTES} bytes")
        try:
            return ControlReply(await self._handle(msgspec.json.decode(line, type=ControlRequest)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return ControlReply(error=f"not a request: {error}")
        except CsdError as error:
            return ControlReply(error=str(error))


async def _refuse(reader: asyncio.StreamReader) -> ControlReply:
    """Answer that the run is busy, once the request is there: a connection that is closed before loses its answer."""
    with contextlib.suppress(TimeoutError, ValueError):
        async with asyncio.timeout(_BUSY_SECONDS):
            await reader.readline()
    return ControlReply(error="the run is busy with other requests; ask again")


def ask(path: Path, request: ControlRequest) -> str:
    """Have the run that listens at `path` do something, and return what came of it; waits until it is done.

    Raises:
        NoRun: none listens.
        DeviceError: the run could not do it; the message is the run's.
        ProtocolError: what listens there is no run.
    """
    with contextlib.closing(_connect(path)) as connection, connection.makefile("rb") as stream:
        try:
            connection.sendall(msgspec.json.encode(request) + b"\n")
            line = stream.readline(MAX_LINE_BYTES)
        except ConnectionError:
            line = b""
    if not line:
        raise NoRun("the run ended before it answered")
    try:
        answer = msgspec.json.decode(line, type=ControlReply)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{path}: what answers there is no run of this version: {error}") from error
    if answer.error:
        raise DeviceError(answer.error)
    return answer.detail


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as address:
            connection.connect(address)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        connection.close()
        raise NoRun(f"no run listens at {path}") from error
    except OSError as error:
        connection.close()
        raise EnvironmentUnfit(f"{path}: the run cannot be asked ({error}); act as the user who started it") from error
    return connection


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield another name of `path` that fits a socket's address of 107 bytes, however deep the folder lies."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
