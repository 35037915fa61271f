"""The charts of training: accuracy, loss and throughput over the rounds and over array time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from msgspec.structs import replace

from host.core.records import RoundRecord
from host.core.run_stats import RunStats
from host.monitoring.report.charts.svg import MUTED, NARROW, SERIES, Chart, draw, legend, printable
from host.monitoring.report.formats import format_number

HEIGHT = 270.0
# More points than this are thinned out: a page has fewer pixels.
MOST_POINTS = 240
_MOST_LINES = 6
# A loss beyond this has diverged: an axis up to it would overflow, and show nothing.
_LARGEST_LOSS = 1e100
MARKED_POINTS = 40
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")


def thin(rounds: Sequence[RoundRecord], most: int = MOST_POINTS) -> list[RoundRecord]:
    """Return at most `most` of the rounds, evenly spread, the first and the last among them."""
    if len(rounds) <= most:
        return list(rounds)
    return [rounds[round(index * (len(rounds) - 1) / (most - 1))] for index in range(most)]


def progress_charts(rounds: Sequence[RoundRecord], target: float | None) -> list[Chart]:
    """Return accuracy and loss over the rounds, and over the array's seconds."""
    kept, clock, last = thin(rounds), RunStats.of(rounds).clock, rounds[-1]
    numbers = [float(record.round) for record in kept]
    ends = [record.start_seconds + record.array_seconds for record in kept]
    told = f"accuracy {last.accuracy:.4f} and loss {format_number(last.test_loss)} after round {last.round}"
    return [
        Chart(
            "progress-rounds",
            "Accuracy and loss over rounds",
            "Accuracy (0 to 1) and mean cross-entropy of the host's weights on held-out records; training loss over "
            "the records trained on." + (f" Thin line: the target, {target:g}." if target is not None else ""),
            draw(
                "progress-rounds",
                f"Accuracy and loss over rounds: {told}.",
                (NARROW, HEIGHT * 1.25),
                lambda figure: _progress(figure, kept, numbers, target, "round", whole=True),
            ),
        ),
        Chart(
            "progress-time",
            "The same over array seconds",
            f"Array seconds ({clock}): compute, flash and link of the drives, composed. Not wall time.",
            draw(
                "progress-time",
                f"Accuracy and loss over array seconds: {told}.",
                (NARROW, HEIGHT * 1.25),
                lambda figure: _progress(figure, kept, ends, target, f"array seconds ({clock})", whole=False),
            ),
        ),
    ]


def _progress(
    figure: Figure, rounds: Sequence[RoundRecord], x: Sequence[float], target: float | None, label: str, whole: bool
) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True)
    marker = "o" if len(x) <= MARKED_POINTS else ""
    upper.plot(x, [record.accuracy for record in rounds], color=SERIES[0], marker=marker, markersize=4)
    upper.set_title("accuracy (held-out)")
    upper.set_ylim(0, 1.02)
    if target is not None:
        upper.axhline(target, color=MUTED, linewidth=1, linestyle="--")
    held_out = [_drawable(record.test_loss) for record in rounds]
    training = [_drawable(record.train_loss) for record in rounds]
    lower.plot(x, held_out, color=SERIES[0], marker=marker, markersize=4, label="held-out")
    lower.plot(
        x,
        training,
        color=SERIES[1],
        marker="s" if marker else "",
        markersize=4,
        linestyle="--",
        label="training",
    )
    lower.set_title("loss")
    losses = [loss for loss in held_out + training if math.isfinite(loss)]
    if losses:
        lower.set_ylim(min(0.0, *losses), max(1e-9, *losses) * 1.08)
    else:
        _say(lower, "no loss was a number that can be drawn")
    set_axis(lower, x, label, whole)
    lower.legend(loc="upper right")


def throughput_chart(rounds: Sequence[RoundRecord], devices: Sequence[str]) -> Chart:
    """Return the rate of each drive in each round; of many drives the band between the slowest and the fastest."""
    own = [replace(record, devices=[part for part in record.devices if part.device in devices]) for record in rounds]
    kept, totals = thin(own), RunStats.of(own)
    rates = _rates(kept, devices)
    told = f"mean {totals.records_per_device_second:.4g} records per device second over {len(devices)} drives"
    many = len(devices) > _MOST_LINES
    return Chart(
        "throughput",
        "Throughput of the drives",
        f"Records per device second ({totals.clock}) in each round: records over compute seconds of the drive."
        + (" The area spans all drives." if many else " A gap: the drive returned nothing in time."),
        draw(
            "throughput",
            f"Throughput per round: {told}.",
            (NARROW, HEIGHT),
            lambda figure: _throughput(figure, kept, rates, many, totals.clock),
        ),
    )


def _rates(rounds: Sequence[RoundRecord], devices: Sequence[str]) -> dict[str, list[float]]:
    """Return device -> records per device second in each round; NaN where it returned nothing in time."""
    known = [
        {part.device: part.samples / part.device_seconds.total for part in record.in_time if part.device_seconds.total}
        for record in rounds
    ]
    return {name: [rates.get(name, math.nan) for rates in known] for name in devices}


def _throughput(
    figure: Figure, rounds: Sequence[RoundRecord], rates: dict[str, list[float]], many: bool, clock: str
) -> None:
    axes = figure.subplots()
    x = [float(record.round) for record in rounds]
    if many:
        _band(axes, x, np.array(list(rates.values())))
    for index, (name, values) in enumerate({} if many else rates.items()):
        axes.plot(
            x,
            values,
            color=SERIES[index % len(SERIES)],
            linestyle=LINE_STYLES[index % len(LINE_STYLES)],
            marker=MARKERS[index % len(MARKERS)] if len(x) <= MARKED_POINTS else "",
            markersize=4,
            label=printable(name, 16),
        )
    finite = [value for values in rates.values() for value in values if math.isfinite(value)]
    axes.set_ylim(0, max(finite, default=1.0) * 1.08)
    axes.set_ylabel(f"records / device s ({clock})")
    set_axis(axes, x, "round", whole=True)
    legend(figure, axes, 3)


def _band(axes: Axes, x: Sequence[float], rates: np.ndarray) -> None:
    known = [(at, column[np.isfinite(column)]) for at, column in zip(x, rates.T, strict=True)]
    known = [(at, column) for at, column in known if column.size]
    at = [place for place, _ in known]
    low, high = [column.min() for _, column in known], [column.max() for _, column in known]
    axes.fill_between(at, low, high, color=SERIES[0], alpha=0.25, label="slowest to fastest")
    axes.plot(at, [np.median(column) for _, column in known], color=SERIES[0], label="median")


def set_axis(axes: Axes, x: Sequence[float], label: str, whole: bool) -> None:
    """Name the axis below; with one point give it room. `whole`: its ticks are whole numbers."""
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))
    if len(x) == 1:  # one point needs room around it
        axes.set_xlim(x[0] - 1, x[0] + 1) if whole else axes.set_xlim(0, x[0] * 2 or 1)


def _drawable(loss: float) -> float:
    return loss if abs(loss) <= _LARGEST_LOSS else math.nan


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=MUTED)
