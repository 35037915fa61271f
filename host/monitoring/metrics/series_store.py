"""Values of series, by metric and labels; not for several threads."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from host.monitoring.metrics.metric import Metric

Labels = tuple[str, ...]
V = TypeVar("V")


@dataclass(frozen=True)
class Histogram:
    """Observations per bucket (the last one is above all bounds), and their sum."""

    counts: tuple[int, ...]
    sum: float

    def cumulative(self) -> list[int]:
        """Return how many observations are at or below each bound; the last number is of all."""
        return list(itertools.accumulate(self.counts))


@dataclass(frozen=True)
class Column(Generic[V]):
    """The series of one metric at one moment.

    Attributes:
        labels: of each; the same object as in the snapshot before, if the series are the same.
        values: of each, in the same order.
        changes: it is equal in two snapshots only if all values are.
    """

    labels: tuple[Labels, ...]
    values: tuple[V, ...]
    changes: int

    def items(self) -> list[tuple[Labels, V]]:
        """Return labels and value of each series."""
        return list(zip(self.labels, self.values, strict=True))


@dataclass(frozen=True)
class MetricsSnapshot:
    """Values at one moment. A metric without series is in neither mapping.

    Attributes:
        numbers: the series of counters and gauges.
        histograms: the others.
        version: it is equal in two snapshots only if all of both are.
    """

    numbers: Mapping[Metric, Column[float]]
    histograms: Mapping[Metric, Column[Histogram]]
    version: int


Hides = Callable[[Metric], frozenset[str]]
"""Returns of which devices a metric's series are not to be seen."""


@dataclass
class _Series(Generic[V]):
    """The series of a metric, and what the last column of them was made from."""

    metric: Metric
    values: dict[Labels, V] = field(default_factory=dict)
    changes: int = 0
    dirty: bool = True
    hidden: frozenset[str] = frozenset()
    labels: tuple[Labels, ...] = ()
    mask: tuple[bool, ...] | None = None

    def set(self, labels: Labels, value: V) -> None:
        before = self.values.get(labels)
        if before is None:
            self.dirty = True
        elif before == value:
            return
        self.values[labels] = value
        self.changes += 1

    def column(self, hidden: frozenset[str]) -> Column[V]:
        if self.dirty or hidden != self.hidden:
            self._arrange(hidden)
        values = tuple(self.values.values())
        if self.mask is not None:
            values = tuple(itertools.compress(values, self.mask))
        return Column(self.labels, values, self.changes)

    def _arrange(self, hidden: frozenset[str]) -> None:
        every = tuple(self.values)
        self.mask = tuple(device_of(self.metric, labels) not in hidden for labels in every) if hidden else None
        labels = every if self.mask is None else tuple(itertools.compress(every, self.mask))
        # A gauge that is cleared and set again has the series that it had.
        if labels != self.labels:
            self.labels = labels
            self.changes += 1
        self.dirty, self.hidden = False, hidden


class Store:
    """All series of a run. Labels are given in the order of `Metric.labels`."""

    def __init__(self) -> None:
        """Begin without any series."""
        self._numbers: dict[Metric, _Series[float]] = {}
        self._histograms: dict[Metric, _Series[Histogram]] = {}
        self.version = 0

    def add(self, metric: Metric, labels: Labels, amount: float = 0.0) -> None:
        """Add to a counter; adding nothing makes its series begin at 0."""
        series = self._series(metric)
        series.set(labels, series.values.get(labels, 0.0) + amount)

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self._series(metric).set(labels, float(value))

    def observe(self, metric: Metric, labels: Labels, value: float = 0.0, times: int = 0) -> None:
        """Put `value` into a histogram so many times; none makes its series begin at 0."""
        self.version += 1
        if (series := self._histograms.get(metric)) is None:
            series = self._histograms[metric] = _Series(metric)
        before = series.values.get(labels) or Histogram((0,) * (len(metric.buckets) + 1), 0.0)
        counts = list(before.counts)
        counts[bisect_left(metric.buckets, value)] += times
        series.set(labels, Histogram(tuple(counts), before.sum + value * times))

    def remove(self, metric: Metric, device: str) -> None:
        """Forget a gauge's series of one device."""
        series = self._series(metric)
        for labels in [labels for labels in series.values if device_of(metric, labels) == device]:
            del series.values[labels]
            series.dirty = True

    def clear(self, metric: Metric) -> None:
        """Forget a gauge's series."""
        series = self._series(metric)
        series.values.clear()
        series.dirty = True

    def snapshot(self, hides: Hides) -> MetricsSnapshot:
        """Return the values of all series that are not hidden."""
        return MetricsSnapshot(_columns(self._numbers, hides), _columns(self._histograms, hides), self.version)

    def _series(self, metric: Metric) -> _Series[float]:
        self.version += 1
        if (series := self._numbers.get(metric)) is None:
            series = self._numbers[metric] = _Series(metric)
        return series


def device_of(metric: Metric, labels: Labels) -> str:
    """Return whose series it is, or an empty text if it is of no single device."""
    return labels[metric.labels.index("device")] if "device" in metric.labels else ""


def _columns(series: Mapping[Metric, _Series[V]], hides: Hides) -> dict[Metric, Column[V]]:
    columns = {metric: each.column(hides(metric)) for metric, each in series.items()}
    return {metric: column for metric, column in columns.items() if column.labels}
