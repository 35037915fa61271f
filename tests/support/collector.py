"""The state as families of `prometheus_client`: what our own text is held against."""

from collections.abc import Iterable, Iterator

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from host.monitoring.metrics.metric import Metric
from host.monitoring.metrics.metric_names import METRICS, OLD_NAMES
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.metrics.series_store import Column, Histogram


class StateCollector(Collector):
    """Hands a state's metrics to a registry, in the order of the table; those without series are left out."""

    def __init__(self, state: MetricsState) -> None:
        """Take the state; it may change at any time."""
        self._state = state

    def collect(self) -> Iterator[Family]:
        """Yield the families of one moment."""
        snapshot = self._state.snapshot()
        for metric in METRICS:
            if metric in snapshot.numbers:
                yield _numbers(metric, snapshot.numbers[metric])
                if metric in OLD_NAMES:
                    yield _numbers(OLD_NAMES[metric], snapshot.numbers[metric])
            elif metric in snapshot.histograms:
                yield _histogram(metric, snapshot.histograms[metric])

    def describe(self) -> Iterable[Family]:
        """Return nothing: the registry need not look for names that collide."""
        return ()


def _numbers(metric: Metric, column: Column[float]) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    for labels, value in column.items():
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, column: Column[Histogram]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
    for labels, value in column.items():
        buckets = [(bound, float(count)) for bound, count in zip(bounds, value.cumulative(), strict=True)]
        family.add_metric(labels, buckets, value.sum)
    return family
