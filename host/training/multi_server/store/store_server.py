"""The store in which servers find each other: it outlives every one of them, so that those who are left meet anew.

It is ours, of plain messages: counters and texts, behind mutual TLS with the key that only the servers have. Nothing in
it is code to anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from csd_emu.config.servers_file import StoreSection
from firmware_agent.common.errors import EnvironmentUnfit, ProtocolError
from host.core.interrupts import end_tasks
from host.training.multi_server.store.store_client import (
    LENGTH_BYTES,
    MAX_KEY_CHARACTERS,
    Add,
    Forget,
    Read,
    Request,
    StoreClient,
    StoreReply,
    Write,
    connect,
    frame,
    key_context,
    make_key,
    message_bytes,
    read_request,
)

MAX_KEYS, MAX_BYTES = 100_000, 256 << 20
# Who has not shown the key yet: connections in all and of one address, and how long each may take.
MAX_GREETINGS, MAX_GREETINGS_OF_ONE, _GREETING_SECONDS = 256, 64, 10.0
_MOST = 1 << 62
_BACKLOG = 4096
_START_SECONDS = 10.0


class Contents:
    """What the store holds, within bounds. Pure."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._texts: dict[str, bytes] = {}
        self._counts: dict[str, int] = {}
        self._text_bytes = 0

    def answer(self, request: Request) -> StoreReply:
        """Do what is asked for; what is refused changes nothing."""
        if isinstance(request, Read):
            return StoreReply([self._texts.get(key) for key in request.keys])
        if isinstance(request, Forget):
            return self._forget(request.prefix)
        if len(request.key) > MAX_KEY_CHARACTERS:
            return StoreReply(error=f"a key has at most {MAX_KEY_CHARACTERS} characters")
        new = request.key not in (self._counts if isinstance(request, Add) else self._texts)
        if new and len(self._counts) + len(self._texts) >= MAX_KEYS:
            return StoreReply(error=f"the store is full: {MAX_KEYS} entries; start it anew when no run goes on")
        return self._add(request) if isinstance(request, Add) else self._write(request)

    def _add(self, request: Add) -> StoreReply:
        number = self._counts.get(request.key, 0) + request.amount
        if abs(number) > _MOST:
            return StoreReply(error="the counter would overflow")
        self._counts[request.key] = number
        return StoreReply(number=number)

    def _write(self, request: Write) -> StoreReply:
        found = self._texts.get(request.key, b"")
        if request.expected is not None and found != request.expected:
            return StoreReply([found])
        total = self._text_bytes + len(request.value) - len(found)
        if total > MAX_BYTES:
            return StoreReply(error=f"the store is full: {MAX_BYTES} bytes; start it anew when no run goes on")
        self._text_bytes = total
        self._texts[request.key] = request.value
        if not request.value:
            del self._texts[request.key]
        return StoreReply([request.value])

    def _forget(self, prefix: str) -> StoreReply:
        for key in [key for key in self._counts if key.startswith(prefix)]:
            del self._counts[key]
        for key in [key for key in self._texts if key.startswith(prefix)]:
            self._text_bytes -= len(self._texts.pop(key))
        return StoreReply()


class Greetings:
    """Connections that have not shown the key yet. Pure.

    When all places are taken the oldest of whoever has most of them ends: a server shows its key within milliseconds,
    one who says nothing is the oldest before long.
    """

    def __init__(self, end: Callable[[Any], None]) -> None:
        """Begin with none; `end` ends a connection."""
        self._end = end
        self.open: dict[Any, str] = {}

    def admit(self, connection: Any, address: str) -> None:
        """Take a new one, at the cost of an older one if all places are taken."""
        counts = Counter(self.open.values())
        if counts[address] >= MAX_GREETINGS_OF_ONE:
            self._end_oldest(address)
        elif counts.total() >= MAX_GREETINGS:
            self._end_oldest(counts.most_common(1)[0][0])
        self.open[connection] = address

    def forget(self, connection: Any) -> None:
        """Drop one that has shown the key, or is closed."""
        self.open.pop(connection, None)

    def _end_oldest(self, address: str) -> None:
        oldest = next(connection for connection, theirs in self.open.items() if theirs == address)
        self.forget(oldest)
        self._end(oldest)


class StoreServer:
    """Answers the servers, in an event loop of its own thread; whoever has not shown the key is not heard."""

    def __init__(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Take a socket that listens."""
        self._listener, self._context, self._contents = listener, context, Contents()
        self._greetings = Greetings(_end)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Answer until it is cancelled."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        try:
            while True:
                try:
                    connection, place = await loop.sock_accept(self._listener)
                except OSError:  # no file is left: those who are in go on
                    await asyncio.sleep(0.1)
                    continue
                self._greetings.admit(connection, place[0])
                task = asyncio.create_task(self._welcome(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            await end_tasks(list(self._tasks))

    async def _welcome(self, connection: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=_GREETING_SECONDS
            )
        except (OSError, EOFError):  # a stranger: ssl's errors are of the first kind
            connection.close()
            return
        finally:
            self._greetings.forget(connection)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        # It may go, or speak another language.
        with contextlib.closing(writer), contextlib.suppress(OSError, EOFError, ProtocolError):
            while True:
                content = await reader.readexactly(message_bytes(await reader.readexactly(LENGTH_BYTES)))
                writer.write(frame(self._contents.answer(read_request(content))))
                await writer.drain()


@contextlib.contextmanager
def kept_store(section: StoreSection) -> Iterator[StoreClient]:
    """Serve the servers' store while the block lasts, and return a client of it; its key is made if there is none.

    Raises:
        EnvironmentUnfit: it cannot listen there, or the key cannot be written.
        ConfigurationError: others can read the key.
    """
    make_key(section.key_path)
    context, listener = key_context(section.key_path, ssl.PROTOCOL_TLS_SERVER), _listen(section)
    loop = asyncio.new_event_loop()
    serving = loop.create_task(StoreServer(listener, context).serve())
    thread = threading.Thread(target=_run, args=(loop, serving), name="store", daemon=True)
    thread.start()
    try:
        with contextlib.closing(connect(section)) as client:
            yield client
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(_START_SECONDS)
        listener.close()


def _end(connection: socket.socket) -> None:
    """Have the handshake of a connection find it closed."""
    with contextlib.suppress(OSError):  # it is
        connection.shutdown(socket.SHUT_RDWR)


def _run(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(serving)
    loop.close()


def _listen(section: StoreSection) -> socket.socket:
    """Return a socket that listens on the store's address alone."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((str(section.address), section.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise EnvironmentUnfit(
            f"store: cannot listen on {section.address}:{section.port} ({error}); is a store there already, or is the "
            "address another machine's?"
        ) from error
    return listener
