"""Series of a run, and the text of them that Prometheus scrapes; not for several threads.

What `prometheus_client` writes takes it some microseconds per line, and a thousand drives have a hundred thousand lines
(docs/development/decisions.md has figures). Here the lines of a metric are one template: labels are laid out once, only
values are filled in, and only of metrics that have changed.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping

from host.monitoring.metrics.metric import Metric

Labels = tuple[str, ...]
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\"", "%": "%%"})


class _Series:
    """The series of a metric: labels -> the value of each of its lines; and the text of them, as it was last."""

    def __init__(self, metric: Metric) -> None:
        self.values: dict[Labels, tuple[float, ...]] = {}
        self.changed = True
        self._metric, self._hidden = metric, frozenset[str]()
        self._shown: list[Labels] = []
        self._template = self._text = ""

    def text(self, hidden: frozenset[str]) -> str:
        """Return the lines of all series but those of the hidden devices."""
        if self.changed or hidden != self._hidden:
            seen = self.values
            if hidden:
                seen = {labels: each for labels, each in seen.items() if _device_of(self._metric, labels) not in hidden}
            # A gauge that is cleared and set again has the series that it had.
            if (shown := list(seen)) != self._shown:
                self._shown, self._template = shown, _template(self._metric, shown)
            self._text = _fill(self._template, itertools.chain.from_iterable(seen.values()))
            self.changed, self._hidden = False, hidden
        return self._text


class Store:
    """All series of a run. Labels are given in the order of `Metric.labels`."""

    def __init__(self) -> None:
        """Begin without any series."""
        self._series: dict[Metric, _Series] = {}
        self.version = 0

    def begin(self, *series: tuple[Metric, Labels]) -> None:
        """Make series that begin at 0, those that are new."""
        for metric, labels in series:
            self.add(metric, labels, 0.0)

    def add(self, metric: Metric, labels: Labels, amount: float) -> None:
        """Add to a counter; adding nothing makes its series begin at 0."""
        series = self._of(metric)
        if (before := series.values.get(labels)) is None or amount:
            series.values[labels] = ((before[0] if before is not None else 0.0) + amount,)
            self._note_change(series)

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self._put(metric, labels, (float(value),))

    def update(self, figures: Mapping[tuple[Metric, Labels], float]) -> None:
        """Add each figure to its counter, or set its gauge."""
        for (metric, labels), value in figures.items():
            (self.add if metric.kind == "counter" else self.set)(metric, labels, value)

    def observe(self, metric: Metric, labels: Labels, value: float = 0.0, times: int = 0) -> None:
        """Put `value` into a histogram so many times; none makes its series begin at 0."""
        *counts, total = self._of(metric).values.get(labels, (0,) * (len(metric.buckets) + 3))
        for place in range(bisect_left(metric.buckets, value), len(counts)):  # its buckets, that of all, and the count
            counts[place] += times
        self._put(metric, labels, (*counts, total + value * times))

    def remove(self, metric: Metric, device: str) -> None:
        """Forget a gauge's series of one device."""
        series = self._of(metric)
        for labels in [labels for labels in series.values if _device_of(metric, labels) == device]:
            del series.values[labels]
        self._note_change(series)

    def replace(self, metric: Metric, values: Mapping[Labels, float]) -> None:
        """Set a gauge's series in place of those that it has."""
        series = self._of(metric)
        series.values = {labels: (float(value),) for labels, value in values.items()}
        self._note_change(series)

    def text(self, metric: Metric, hidden: frozenset[str]) -> str:
        """Return the lines of a metric's series but those of the `hidden` devices; empty if there are none."""
        return self._of(metric).text(hidden)

    def _of(self, metric: Metric) -> _Series:
        if (series := self._series.get(metric)) is None:
            series = self._series[metric] = _Series(metric)
        return series

    def _put(self, metric: Metric, labels: Labels, values: tuple[float, ...]) -> None:
        if (series := self._of(metric)).values.get(labels) != values:
            series.values[labels] = values
            self._note_change(series)

    def _note_change(self, series: _Series) -> None:
        series.changed = True
        self.version += 1


def _device_of(metric: Metric, labels: Labels) -> str:
    """Return whose series it is, or an empty text if it is of no single device."""
    return labels[metric.labels.index("device")] if "device" in metric.labels else ""


def _template(metric: Metric, series: Iterable[Labels]) -> str:
    """Return the lines of these series, with a place for each value."""
    own = _braced(metric.labels)
    if metric.kind == "histogram":
        bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
        lines = [
            *(f"{metric.name}_bucket{_braced(metric.labels, bound)} %%d.0\n" for bound in bounds),
            *(f"{metric.name}_count{own} %%d.0\n", f"{metric.name}_sum{own} %%r\n"),
        ]
    else:
        lines = [f"{metric.name}{own} %%r\n"]
    pattern = "".join(lines)
    order = sorted(range(len(metric.labels)), key=metric.labels.__getitem__) * len(lines)
    return "".join(pattern % tuple(labels[place].translate(_ESCAPES) for place in order) for labels in series)


def _braced(labels: Iterable[str], bound: str | None = None) -> str:
    """Return a place for each label, in the order of their names; `bound` is that of a bucket."""
    values = dict.fromkeys(labels, "%s") | ({"le": bound} if bound is not None else {})
    pairs = [f'{name}="{value}"' for name, value in sorted(values.items())]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _fill(template: str, values: Iterable[float]) -> str:
    values = tuple(values)
    lines = template % values
    if math.isfinite(sum(values)):
        return lines
    return lines.replace(" nan\n", " NaN\n").replace(" inf\n", " +Inf\n").replace(" -inf\n", " -Inf\n")
