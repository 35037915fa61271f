"""The HTTP server of a run: its metrics for Prometheus at /metrics, its live page everywhere else.

Counters advance in device time; scrapes come in wall time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from http import HTTPStatus
from ipaddress import IPv4Address
from wsgiref.simple_server import make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from firmware_agent.common.errors import EnvironmentUnfit
from host.monitoring.metrics.allowed_hosts import is_our_name, is_our_origin
from host.monitoring.metrics.exposition import Exposition
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.metrics.scrapers import Scrapers
from host.monitoring.metrics.web_server import RequestHandler, WebServer
from host.monitoring.page.page_app import METHODS, PageApp, refuse, refuse_method

LOOPBACK = IPv4Address("127.0.0.1")
USUAL_PORT = 9464
"""Where a run listens whose array file names no port, if nothing else does."""
_METRICS = "/metrics"
_MISDIRECTED = b"this server does not go by that name; use its IP address, or name it in host.names of the array file\n"


class Exporter:
    """Serves the metrics and the page of one run; a context manager."""

    def __init__(
        self,
        state: MetricsState,
        port: int | None,
        address: IPv4Address = LOOPBACK,
        page: PageApp | None = None,
        names: Collection[str] = (),
    ) -> None:
        """Prepare to listen on `port`, or on `USUAL_PORT`, else any free one, of this machine's own `address`.

        `page` answers all but `/metrics`; without one there is nothing else. Under a host name, other than localhost
        and `names`, nothing is answered (see `host.monitoring.metrics.allowed_hosts`).
        """
        self._names = frozenset(name.lower() for name in names)
        self.state = state
        self._page = page
        self._ports, self._address = [USUAL_PORT, 0] if port is None else [port], address
        self._exposition = Exposition(state)
        self._scrapers, self._lock = Scrapers(), threading.Lock()
        self._scraped: Callable[[], object] = lambda: None
        self._server: WebServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Exporter:
        for port in self._ports:
            try:
                self._server = server = make_server(str(self._address), port, self._answer, WebServer, RequestHandler)
                break
            except OSError as error:
                if port == self._ports[-1]:
                    raise EnvironmentUnfit(
                        f"host.metrics_port: cannot listen on {self._address}:{port} ({error.strerror}); "
                        "free it, or set another"
                    ) from error
        self._thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    @property
    def address(self) -> str:
        """The URL that Prometheus scrapes, as seen from this machine."""
        return f"{self.page_address.removesuffix('/')}{_METRICS}"

    @property
    def page_address(self) -> str:
        """The URL of the live page, as seen from this machine."""
        port = self._ports[0] if self._server is None else self._server.server_port
        return f"http://{LOOPBACK if self._address.is_unspecified else self._address}:{port}/"

    def render(self) -> bytes:
        """Return the metrics as they are, in Prometheus' text format."""
        return self._exposition.render(None, None)[1]

    async def wait_for_scrapers(self) -> None:
        """Wait until everyone who scrapes regularly has got the state as it is; nobody is waited for in vain for long.

        See `host.monitoring.metrics.scrapers`.
        """
        loop, scraped = asyncio.get_running_loop(), asyncio.Event()
        self._scraped = lambda: loop.call_soon_threadsafe(scraped.set)
        try:
            while (left_seconds := self._wait_seconds()) > 0:
                scraped.clear()
                try:
                    await asyncio.wait_for(scraped.wait(), left_seconds)
                except TimeoutError:
                    return
        finally:
            self._scraped = lambda: None

    def _wait_seconds(self) -> float:
        with self._lock:
            return self._scrapers.wait_seconds(self.state.revision, time.monotonic())

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        authority = environ.get("HTTP_HOST", "")
        if not is_our_name(authority, self._names):
            return refuse(start_response, HTTPStatus.MISDIRECTED_REQUEST, _MISDIRECTED)
        if (origin := environ.get("HTTP_ORIGIN")) is not None and not is_our_origin(origin, authority, self._names):
            return refuse(start_response, HTTPStatus.FORBIDDEN, _MISDIRECTED)
        if environ["REQUEST_METHOD"] not in METHODS:
            return refuse_method(start_response)
        if environ.get("PATH_INFO", "") != _METRICS:
            return (
                self._page(environ, start_response) if self._page else refuse(start_response, HTTPStatus.NOT_FOUND, b"")
            )
        revision, name = self.state.revision, environ.get("HTTP_USER_AGENT", "")

        def sent() -> None:
            with self._lock:
                self._scrapers.note(name, revision, time.monotonic())
            self._scraped()

        headers, body = self._exposition.render(environ.get("HTTP_ACCEPT"), environ.get("HTTP_ACCEPT_ENCODING"))
        # Without its length an answer that the run's end cuts short would pass for a whole one.
        start_response("200 OK", [*headers, ("Content-Length", str(len(body))), ("X-Content-Type-Options", "nosniff")])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else _tell_when_sent(body, sent)


def _tell_when_sent(body: bytes, on_sent: Callable[[], None]) -> Iterator[bytes]:
    """Yield a body, and tell when it has been handed to the network: the server ends the iteration then (PEP 3333)."""
    try:
        yield body
    finally:
        on_sent()
