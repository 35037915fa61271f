"""Values of series, by metric and labels; not for several threads."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from host.metrics.metric import Metric

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
class Snapshot:
    """Values at one moment: metric -> labels -> value. A metric without series is in neither mapping."""

    numbers: Mapping[Metric, Mapping[Labels, float]]
    histograms: Mapping[Metric, Mapping[Labels, Histogram]]


class Store:
    """All series of a run. Labels are given in the order of `Metric.labels`."""

    def __init__(self) -> None:
        """Begin without any series."""
        self._numbers: defaultdict[Metric, dict[Labels, float]] = defaultdict(dict)
        self._histograms: defaultdict[Metric, dict[Labels, Histogram]] = defaultdict(dict)

    def add(self, metric: Metric, labels: Labels, amount: float = 0.0) -> None:
        """Add to a counter; adding nothing makes its series begin at 0."""
        series = self._numbers[metric]
        series[labels] = series.get(labels, 0.0) + amount

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self._numbers[metric][labels] = float(value)

    def observe(self, metric: Metric, labels: Labels, value: float = 0.0, times: int = 0) -> None:
        """Put `value` into a histogram so many times; none makes its series begin at 0."""
        series = self._histograms[metric]
        before = series.get(labels) or Histogram((0,) * (len(metric.buckets) + 1), 0.0)
        counts = list(before.counts)
        counts[bisect_left(metric.buckets, value)] += times
        series[labels] = Histogram(tuple(counts), before.sum + value * times)

    def remove(self, metric: Metric, device: str) -> None:
        """Forget a gauge's series of one device."""
        series = self._numbers[metric]
        for labels in [labels for labels in series if device_of(metric, labels) == device]:
            del series[labels]

    def clear(self, metric: Metric) -> None:
        """Forget a gauge's series."""
        self._numbers[metric].clear()

    def snapshot(self, is_served: Callable[[Metric, Labels], bool]) -> Snapshot:
        """Return a copy of all series that are served."""
        return Snapshot(_copy(self._numbers, is_served), _copy(self._histograms, is_served))


def device_of(metric: Metric, labels: Labels) -> str:
    """Return whose series it is, or an empty text if it is of no single device."""
    return labels[metric.labels.index("device")] if "device" in metric.labels else ""


def _copy(
    series: Mapping[Metric, Mapping[Labels, V]], is_served: Callable[[Metric, Labels], bool]
) -> dict[Metric, dict[Labels, V]]:
    kept = {
        metric: {labels: value for labels, value in values.items() if is_served(metric, labels)}
        for metric, values in series.items()
    }
    return {metric: values for metric, values in kept.items() if values}
