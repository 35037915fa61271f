"""The state as the answer to a scrape. Which of Prometheus' formats a client gets, `prometheus_client` says."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass

from prometheus_client.exposition import choose_encoder, gzip_accepted

from host.monitoring.metrics.metrics_state import MetricsState

Headers = list[tuple[str, str]]
_OPEN_METRICS = "application/openmetrics-text"
# Levels above it take up to ten times as long, and save a third of what is left.
_GZIP_LEVEL = 1


@dataclass
class _Page:
    """A whole answer, as it is and, once someone has asked for it, compressed."""

    version: int
    plain: bytes
    compressed: bytes | None = None


class Exposition:
    """Renders a state; safe to be asked by several threads at once."""

    def __init__(self, state: MetricsState) -> None:
        """Take the state; it may change at any time."""
        self._state, self._lock = state, threading.Lock()
        self._pages: dict[bool, _Page] = {}

    def render(self, accept: str | None, accept_encoding: str | None) -> tuple[Headers, bytes]:
        """Return headers and body of the answer to a scrape.

        Args:
            accept: the request's header of that name; None if it has none.
            accept_encoding: likewise.
        """
        _, content_type = choose_encoder(accept or "")
        headers = [("Content-Type", content_type)]
        with self._lock:
            page = self._page(content_type.startswith(_OPEN_METRICS))
            if not gzip_accepted(accept_encoding or ""):
                return headers, page.plain
            if page.compressed is None:
                page.compressed = gzip.compress(page.plain, _GZIP_LEVEL, mtime=0)
            return [*headers, ("Content-Encoding", "gzip")], page.compressed

    def _page(self, open_metrics: bool) -> _Page:
        if (page := self._pages.get(open_metrics)) is None or page.version != self._state.version:
            version, text = self._state.render(open_metrics)
            page = self._pages[open_metrics] = _Page(version, text.encode())
        return page
