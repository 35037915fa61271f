"""Description of one metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

# A step takes milliseconds with a small model and minutes with a large one; so does a round, times the steps in it.
STEP_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
ROUND_BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric; equal to itself alone, for it is looked up at every count.

    Attributes:
        name: as Prometheus knows it; a counter's ends in ``_total``.
        kind: its type.
        unit: base unit, which the name ends with (before ``_total``); empty for counts and states.
        labels: names of its labels.
        help: one line.
        buckets: upper bounds of a histogram's buckets, in `unit`.
        outlives: it is still served of a drive that is gone (see `host.monitoring.metrics.metrics_state`).
        hardware: it is still served of a drive that is gone while the records charge energy to it.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    outlives: bool = False
    hardware: bool = False
