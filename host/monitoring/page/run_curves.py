"""Curves of a run over the array's seconds. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping

from csd_emu.util.node_names import HOST
from host.core.records import RoundRecord, StepRecord
from host.monitoring.page.curve import Point, ThinnedCurve


class RunCurves:
    """Curves by name, each thinned as it grows.

    Attributes:
        batches: device -> its batch in synchronous steps, as last drawn.
    """

    def __init__(self) -> None:
        """Begin without points."""
        self._curves: defaultdict[str, ThinnedCurve] = defaultdict(ThinnedCurve)
        self.batches: dict[str, int] = {}

    def points(self) -> dict[str, list[Point]]:
        """Return a copy of the points of each."""
        return {name: curve.points() for name, curve in self._curves.items()}

    def add_round(self, record: RoundRecord) -> None:
        """Draw a round, whose steps were drawn."""
        end, (drives, host) = record.start_seconds + record.array_seconds, _watts(record)
        values = {
            "accuracy": record.accuracy,
            "test_loss": record.test_loss,
            "train_loss": record.train_loss,
            "device_rate": record.records_per_device_second,
            "drive_watts": drives,
            "host_watts": host,
            "wall_per_array_second": _over(record.wall_seconds, record.array_seconds),
        }
        if not record.steps:
            values["array_rate"] = _over(record.samples, record.array_seconds)
            self._draw_batches(record.start_seconds, [part.batch_size for part in record.devices])
        for name, value in values.items():
            self._curves[name].add(end, value)
        if record.steps:
            self.set_batches(end, {})

    def add_step(self, record: StepRecord, end_seconds: float) -> None:
        """Draw a synchronous step."""
        self._curves["array_rate"].add(end_seconds, _over(record.samples, record.array_seconds) or math.nan)

    def set_batches(self, now_seconds: float, batches: Mapping[str, int]) -> None:
        """Draw the batches of synchronous steps from now on; an epoch's last step is smaller than these."""
        self.batches |= batches
        self._draw_batches(now_seconds, [batch for device, batch in self.batches.items() if device != HOST])

    def _draw_batches(self, now_seconds: float, batches: Collection[int]) -> None:
        if batches:
            for name, value in (("low", min), ("median", statistics.median_low), ("high", max)):
                self._curves[f"batch_{name}"].add(now_seconds, float(value(batches)))


def _over(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


def _watts(record: RoundRecord) -> tuple[float, float]:
    """Return the mean watts of all drives, and of host and chassis; 0 of a round without length."""
    joules = {True: 0.0, False: 0.0}
    for node, parts in record.node_joules.items():
        joules[node == HOST] += math.fsum(parts.values())
    seconds = record.array_seconds if record.array_seconds > 0 else math.inf
    return joules[False] / seconds, joules[True] / seconds
