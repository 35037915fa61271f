"""The state as the text that Prometheus scrapes.

What `prometheus_client` writes takes it some microseconds per line, and a thousand drives have a hundred thousand
lines. Here the lines of a metric are one template: labels are laid out once, only values are filled in, and only of
metrics that have changed. A test holds the text against that of `prometheus_client`, which also says which of its
formats a client gets.
"""

from __future__ import annotations

import gzip
import itertools
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.exposition import choose_encoder, gzip_accepted

from host.monitoring.metrics.metric import Metric
from host.monitoring.metrics.metric_names import METRICS, OLD_NAMES
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.metrics.series_store import Column, Histogram, Labels, MetricsSnapshot

Headers = list[tuple[str, str]]
_OPEN_METRICS = "application/openmetrics-text"
# Levels above it take up to ten times as long, and save a third of what is left.
_GZIP_LEVEL = 1
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\"", "%": "%%"})


@dataclass
class _Text:
    """The lines of one metric: as they were last, and the template that they were made with."""

    labels: tuple[Labels, ...]
    template: str
    changes: int = -1
    lines: str = ""


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
        self._texts: dict[Metric, _Text] = {}
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
        page = self._pages.get(open_metrics)
        if page is None or page.version != self._state.version:
            snapshot = self._state.snapshot()
            page = _Page(snapshot.version, "".join(self._parts(snapshot, open_metrics)).encode())
            self._pages[open_metrics] = page
        return page

    def _parts(self, snapshot: MetricsSnapshot, open_metrics: bool) -> Iterator[str]:
        for metric in METRICS:
            if metric in snapshot.numbers:
                for name in (metric, OLD_NAMES[metric]) if metric in OLD_NAMES else (metric,):
                    yield _head(name, open_metrics)
                    yield self._numbers(name, snapshot.numbers[metric])
            elif metric in snapshot.histograms:
                yield _head(metric, open_metrics)
                yield self._histograms(metric, snapshot.histograms[metric])
        if open_metrics:
            yield "# EOF\n"

    def _numbers(self, metric: Metric, column: Column[float]) -> str:
        text = self._text(metric, column)
        if text.changes != column.changes:
            text.lines, text.changes = _fill(text.template, column.values), column.changes
        return text.lines

    def _histograms(self, metric: Metric, column: Column[Histogram]) -> str:
        text = self._text(metric, column)
        if text.changes != column.changes:
            text.lines, text.changes = _fill(text.template, _flatten(column.values)), column.changes
        return text.lines

    def _text(self, metric: Metric, column: Column[float] | Column[Histogram]) -> _Text:
        text = self._texts.get(metric)
        if text is None or text.labels is not column.labels:
            text = self._texts[metric] = _Text(column.labels, _template(metric, column.labels))
        return text


def _head(metric: Metric, open_metrics: bool) -> str:
    name = metric.name.removesuffix("_total") if open_metrics else metric.name
    unit = f"# UNIT {name} {metric.unit}\n" if open_metrics and metric.unit else ""
    return f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n{unit}"


def _template(metric: Metric, series: Iterable[Labels]) -> str:
    """Return the lines of these series, with a place for each value."""
    pattern, times = _pattern(metric)
    order = sorted(range(len(metric.labels)), key=metric.labels.__getitem__)
    return "".join(pattern % (tuple(labels[place].translate(_ESCAPES) for place in order) * times) for labels in series)


def _pattern(metric: Metric) -> tuple[str, int]:
    """Return a series' lines with places for its labels, and how often they are in it; values' places are quoted."""
    own = _braced(metric.labels)
    if metric.kind != "histogram":
        return f"{metric.name}{own} %%r\n", 1
    bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
    buckets = [f"{metric.name}_bucket{_braced(metric.labels, bound)} %%d.0\n" for bound in bounds]
    return "".join(buckets) + f"{metric.name}_count{own} %%d.0\n{metric.name}_sum{own} %%r\n", len(buckets) + 2


def _braced(labels: Iterable[str], bound: str | None = None) -> str:
    """Return a place for each label, in the order of their names; `bound` is that of a bucket."""
    values = dict.fromkeys(labels, "%s") | ({"le": bound} if bound is not None else {})
    pairs = [f'{name}="{value}"' for name, value in sorted(values.items())]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _fill(template: str, values: Sequence[float]) -> str:
    lines = template % tuple(values)
    if math.isfinite(sum(values)):
        return lines
    return lines.replace(" nan\n", " NaN\n").replace(" inf\n", " +Inf\n").replace(" -inf\n", " -Inf\n")


def _flatten(histograms: Iterable[Histogram]) -> list[float]:
    """Return what the places of a template for these take, one behind the other."""
    flat: list[float] = []
    for histogram in histograms:
        cumulative = list(itertools.accumulate(histogram.counts))
        flat += cumulative
        flat += (cumulative[-1], histogram.sum)
    return flat
