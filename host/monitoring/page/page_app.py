"""The live page over HTTP (WSGI): read-only, nothing from elsewhere, and nothing sent twice."""

from __future__ import annotations

import secrets
import threading
import zlib
from collections.abc import Callable, Iterable
from http import HTTPStatus
from importlib import metadata
from wsgiref.types import StartResponse, WSGIEnvironment

import msgspec

from host.monitoring.page.assets import INDEX, Body, list_files, load_asset
from host.monitoring.page.page_state import STARTING
from host.monitoring.page.run_history import History, Presences, count_states

# Nothing is evaluated, nothing comes from elsewhere, nothing is framed, nothing is sent anywhere. Styles may be inline:
# Plotly writes style elements as soon as it is loaded.
POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self' 'unsafe-inline'", "img-src 'self' data:"),
        *("connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    )
)
SECURITY = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
METHODS = ("GET", "HEAD")
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"


class Health(msgspec.Struct, frozen=True):
    """What `/healthz` returns: `ready` once all drives have dialled in and training has begun, or is done."""

    ready: bool
    phase: str
    drives: int
    states: dict[str, int]


class PageApp:
    """Serves one run's page; a WSGI application for several threads."""

    def __init__(self, history: History, presences: Callable[[], Presences]) -> None:
        """Take what is shown; `presences` returns who is there, and may be asked at any time."""
        self._history, self._presences = history, presences
        self._files = list_files()
        self._instance, self._program = secrets.token_hex(4), metadata.version("csd-emu")
        self._lock = threading.Lock()
        self._last: Body | None = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        if environ["REQUEST_METHOD"] not in METHODS:
            return refuse_method(start_response)
        status, body = self._route(environ.get("PATH_INFO", "/"))
        return send(environ, start_response, status, body)

    def health(self) -> Health:
        """Return whether the run is under way."""
        presences, phase = self._presences(), self._history.phase
        return Health(phase != STARTING, phase, len(presences), count_states(presences))

    def _route(self, path: str) -> tuple[HTTPStatus, Body]:
        if path == "/api/state":
            return HTTPStatus.OK, self._state()
        if path == "/healthz":
            health = self.health()
            status = HTTPStatus.OK if health.ready else HTTPStatus.SERVICE_UNAVAILABLE
            return status, Body(msgspec.json.encode(health), _JSON)
        name = INDEX if path == "/" else path.removeprefix("/static/")
        known = path == "/" or (path.startswith("/static/") and name != INDEX)
        if not known or name not in self._files:
            return HTTPStatus.NOT_FOUND, Body(b"there is nothing here; the page is at /\n", _TEXT)
        return HTTPStatus.OK, load_asset(self._files[name])

    def _state(self) -> Body:
        """Return the state, which is made anew only if something has changed."""
        with self._lock:
            presences = self._presences()
            tag = f"{self._instance}-{self._history.revision}-{_digest(presences):08x}"
            if self._last is None or self._last.tag != tag:
                state = self._history.state(presences, self._instance, self._program)
                self._last = Body(msgspec.json.encode(state), _JSON, tag)
            return self._last


def refuse_method(start_response: StartResponse) -> Iterable[bytes]:
    """Answer a request that is not to read."""
    allowed = ("Allow", ", ".join(METHODS))
    return refuse(start_response, HTTPStatus.METHOD_NOT_ALLOWED, b"this server is read-only: GET and HEAD\n", allowed)


def refuse(start_response: StartResponse, status: HTTPStatus, why: bytes, *headers: tuple[str, str]) -> Iterable[bytes]:
    """Answer a request with an error and nothing else."""
    start_response(_line(status), [*headers, ("Content-Type", _TEXT), ("Content-Length", str(len(why))), *SECURITY])
    return [why]


def send(environ: WSGIEnvironment, start_response: StartResponse, status: HTTPStatus, body: Body) -> Iterable[bytes]:
    """Send a body, compressed if the client likes it so; only a 304 if it has it already, no body to a HEAD."""
    headers = [("Content-Type", body.content_type), ("Cache-Control", "no-cache"), ("Vary", "Accept-Encoding")]
    if body.tag:
        headers.append(("ETag", f'"{body.tag}"'))
        if _knows(environ.get("HTTP_IF_NONE_MATCH", ""), body.tag):
            start_response(_line(HTTPStatus.NOT_MODIFIED), [*headers[1:], *SECURITY])
            return []
    data = body.gzipped if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", "") else body.data
    if data is not body.data:
        headers.append(("Content-Encoding", "gzip"))
    start_response(_line(status), [*headers, ("Content-Length", str(len(data))), *SECURITY])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [data]


def _knows(header: str, tag: str) -> bool:
    known = [each.strip().removeprefix("W/") for each in header.split(",")]
    return f'"{tag}"' in known or "*" in known


def _line(status: HTTPStatus) -> str:
    return f"{status.value} {status.phrase}"


def _digest(presences: Presences) -> int:
    facts = (
        (name, state, known.clock if known else "", known.profile if known else "")
        for name, (state, known) in presences.items()
    )
    return zlib.crc32("\n".join(map(" ".join, facts)).encode())
