"""A TCP proxy between a client and a machine, which can be cut at a given byte, or be slow."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

_PIECE_BYTES = 32768
_CLOSE_SECONDS = 10.0
_T = TypeVar("_T")


class TcpProxy:
    """Forwards a port of the loopback to another one; runs in a thread of its own.

    Attributes:
        port: where it listens.
        sent_bytes: from clients to the machine, since the start.
        cuts: how often a connection was cut.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._cut_after: int | None = None
        self._bytes_per_second: float | None = None
        self._open = True
        self.port, self.sent_bytes, self.cuts = 0, 0, 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(self._listen()).result(_CLOSE_SECONDS)

    def cut_after(self, count: int) -> None:
        """Break all connections once `count` more bytes have gone to the machine; new ones work again."""
        self._cut_after = self.sent_bytes + count

    def limit(self, bytes_per_second: float | None) -> None:
        """Let no more than so many bytes a second through to the machine; None: as many as it takes."""
        self._bytes_per_second = bytes_per_second

    def cut(self) -> None:
        """Break all connections, and refuse new ones until `heal`."""
        self._open = False
        self._loop.call_soon_threadsafe(self._abort)

    def heal(self) -> None:
        """Let new connections through."""
        self._open = True

    def close(self) -> None:
        """End it, with all of its connections."""
        self._call(self._end()).result(_CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _end(self) -> None:
        self._server.close()
        self._abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._held(writer):
            if not self._open:
                return
            with contextlib.suppress(OSError, asyncio.CancelledError):
                onward_reader, onward = await asyncio.open_connection("127.0.0.1", self._target_port)
                with self._held(onward):
                    await asyncio.gather(self._pump(reader, onward, True), self._pump(onward_reader, writer, False))

    @contextlib.contextmanager
    def _held(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, upwards: bool) -> None:
        while piece := await source.read(_PIECE_BYTES):
            if upwards:
                self.sent_bytes += len(piece)
                if self._cut_after is not None and self.sent_bytes >= self._cut_after:
                    self._cut_after = None
                    self.cuts += 1
                    self._abort()
                    return
                if self._bytes_per_second is not None:
                    await asyncio.sleep(len(piece) / self._bytes_per_second)
            sink.write(piece)
            await sink.drain()
        # Each side hears of the other's end.
        if sink.can_write_eof():
            sink.write_eof()
