"""Curves of a run over the array's seconds, and the panes of accuracy and loss. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from csd_emu.util.node_names import HOST
from host.core.records import RoundRecord, StepRecord
from host.monitoring.charts.chart import Pane, Point, make_curve, thin

# Of one curve that may go on for ever.
MOST_KEPT = 512


class RunCurves:
    """Curves by name, of at most `MOST_KEPT` points each: when there are more, they are thinned to about half.

    Attributes:
        batches: device -> its batch in synchronous steps, as last drawn.
    """

    def __init__(self) -> None:
        """Begin without points."""
        self._points: defaultdict[str, list[Point]] = defaultdict(list)
        self.batches: dict[str, int] = {}

    def points(self) -> dict[str, list[Point]]:
        """Return a copy of the points of each."""
        return {name: list(points) for name, points in self._points.items()}

    def add(self, name: str, x: float, y: float) -> None:
        """Add a point at the end of a curve."""
        self._points[name].append((x, y))
        if len(self._points[name]) > MOST_KEPT:
            self._points[name] = thin(self._points[name], MOST_KEPT // 2)

    def add_round(self, record: RoundRecord) -> None:
        """Draw a round, whose steps were drawn."""
        end, watts = record.end_seconds, record.node_watts
        values = {
            **progress_values(record),
            "device_rate": record.records_per_device_second,
            "drive_watts": math.fsum(value for node, value in watts.items() if node != HOST),
            "host_watts": watts.get(HOST, 0.0),
            "wall_per_array_second": _over(record.wall_seconds, record.array_seconds),
        }
        if not record.steps:
            values["array_rate"] = _over(record.samples, record.array_seconds)
            self._draw_batches(record.start_seconds, [part.batch_size for part in record.devices])
        for name, value in values.items():
            self.add(name, end, value)
        if record.steps:
            self.set_batches(end, {})

    def add_step(self, record: StepRecord, end_seconds: float) -> None:
        """Draw a synchronous step."""
        self.add("array_rate", end_seconds, _over(record.samples, record.array_seconds) or math.nan)

    def set_batches(self, now_seconds: float, batches: Mapping[str, int]) -> None:
        """Draw the batches of synchronous steps from now on; an epoch's last step is smaller than these."""
        self.batches |= batches
        self._draw_batches(now_seconds, [batch for device, batch in self.batches.items() if device != HOST])

    def _draw_batches(self, now_seconds: float, batches: Collection[int]) -> None:
        if batches:
            for name, value in (("low", min), ("median", statistics.median_low), ("high", max)):
                self.add(f"batch_{name}", now_seconds, float(value(batches)))


def progress_values(record: RoundRecord) -> dict[str, float]:
    """Return what the weights after a round are worth."""
    return {"accuracy": record.accuracy, "test_loss": record.test_loss, "train_loss": record.train_loss}


def progress_panes(curves: Mapping[str, Sequence[Point]], target: float | None) -> list[Pane]:
    """Return accuracy above losses; none without points. Of `curves` those named in `progress_values` are drawn."""
    if not curves.get("accuracy"):
        return []
    accuracy = make_curve("accuracy", curves["accuracy"], "s1")
    held_out = make_curve("held-out loss", curves["test_loss"], "s2")
    training = make_curve("training loss", curves["train_loss"], "s6", dash="dot")
    losses = Pane(curves=[held_out, training], unit="loss", low=0.0)
    if all(math.isnan(point[-1]) for point in curves["accuracy"]):
        return [losses]  # of records without classes, or of a run that has diverged
    return [Pane(curves=[accuracy], unit="accuracy", low=0.0, high=1.02, target=target), losses]


def _over(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan
