"""HTTP server of metrics and page, with limits on the connections, bytes and seconds of its clients.

A connection carries one request. When all places are taken the oldest connection of whoever has most of them ends: a
request of somebody who goes on asking takes milliseconds, one who says nothing is the oldest before long.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException, LineTooLong
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

log = logging.getLogger(__name__)

MOST_CONNECTIONS, MOST_OF_ONE = 64, 48
MOST_HEAD_BYTES = 16 << 10
# Until a request's head is there, and until its answer has been taken.
HEAD_SECONDS, ANSWER_SECONDS = 10.0, 60.0
_NO_FILES = (errno.EMFILE, errno.ENFILE)
_NO_FILES_SECONDS = 0.1


class _Connection:
    """An open connection: whose, since when, and whether its request has come."""

    def __init__(self, peer: str, now_seconds: float) -> None:
        self.peer, self.since_seconds = peer, now_seconds
        self.asked, self.ended = False, False


class Connections:
    """All open connections; from any thread."""

    def __init__(self, end: Callable[[Any], None], now: Callable[[], float] = time.monotonic) -> None:
        """Begin with none.

        Args:
            end: ends a connection, whose thread then returns and calls `forget`.
            now: returns monotonic seconds.
        """
        self._end, self._now, self._lock = end, now, threading.Lock()
        self._open: dict[Any, _Connection] = {}

    def admit(self, connection: Any, peer: str) -> bool:
        """Take a new one, at the cost of an older one if all places are taken; return whether there is room."""
        with self._lock:
            if len(self._open) >= 2 * MOST_CONNECTIONS:  # so many have been ended that their threads still return
                return False
            counts = Counter(each.peer for each in self._open.values() if not each.ended)
            if counts[peer] >= MOST_OF_ONE:
                self._end_oldest(peer)
            elif counts.total() >= MOST_CONNECTIONS:
                self._end_oldest(counts.most_common(1)[0][0])
            self._open[connection] = _Connection(peer, self._now())
            return True

    def note_request(self, connection: Any) -> None:
        """Note that the head of a request has come."""
        with self._lock:
            if (found := self._open.get(connection)) is not None:
                found.asked = True

    def forget(self, connection: Any) -> None:
        """Drop one that is closed."""
        with self._lock:
            self._open.pop(connection, None)

    def end_slow(self) -> None:
        """End those that have taken too long."""
        with self._lock:
            now = self._now()
            for connection, each in self._open.items():
                if not each.ended and now - each.since_seconds > (ANSWER_SECONDS if each.asked else HEAD_SECONDS):
                    self._finish(connection, each)

    def _end_oldest(self, peer: str) -> None:
        """End the connection of `peer` that came first; dictionaries keep that order."""
        mine = ((connection, each) for connection, each in self._open.items() if each.peer == peer and not each.ended)
        self._finish(*next(mine))

    def _finish(self, connection: Any, each: _Connection) -> None:
        each.ended = True
        self._end(connection)


class WebServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection; one that never asks must not keep the run from ending."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Listen; see `wsgiref.simple_server.make_server`."""
        self.connections = Connections(_end)
        # Given up for a moment to turn somebody away when there are no more files: else they would ask for ever.
        self._spare = os.open(os.devnull, os.O_RDONLY)
        super().__init__(*arguments, **options)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; if there are no more files, refuse it."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_FILES:
                self._turn_away()
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, if there is room for it."""
        if not self.connections.admit(request, str(client_address[0])):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:  # no more threads
            log.debug("a connection was refused: %s", error)
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.connections.forget(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Look after slow clients, several times a second."""
        self.connections.end_slow()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what broke: most likely the client has gone. Standard error is the user's."""
        log.debug("a request of %s failed", client_address, exc_info=True)

    def server_close(self) -> None:
        """Stop to listen."""
        super().server_close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _turn_away(self) -> None:
        os.close(self._spare)
        try:
            connection, _ = self.socket.accept()
            connection.close()
        except OSError:
            time.sleep(_NO_FILES_SECONDS)
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY)


class RequestHandler(WSGIRequestHandler):
    """Reads one request, whose head is bounded, and logs none."""

    server: WebServer

    def setup(self) -> None:
        """Prepare to read."""
        super().setup()
        self.rfile = _Head(self.rfile)  # type: ignore[assignment]

    def handle(self) -> None:
        """Answer one request."""
        self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
        try:
            super().handle()
        except HTTPException:
            self.send_error(431)

    def get_environ(self) -> dict[str, Any]:
        """Return the request, whose head is there by now."""
        self.server.connections.note_request(self.request)
        return super().get_environ()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class _Head:
    """The beginning of what a client sends; no request that is answered here has anything behind its head."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._left = stream, MOST_HEAD_BYTES

    def readline(self, size: int) -> bytes:
        line: bytes = self._stream.readline(min(size, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("request")
        return line

    def read(self, size: int = -1) -> bytes:
        return b""

    def close(self) -> None:
        self._stream.close()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)


def _end(connection: socket.socket) -> None:
    """Have whoever reads or writes a connection find it closed."""
    with contextlib.suppress(OSError):  # it is
        connection.shutdown(socket.SHUT_RDWR)
