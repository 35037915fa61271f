"""The charts of a run over its rounds and over array time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from firmware_agent.units import format_bytes
from host.records import RoundRecord
from host.report.figures import GROUPS, group_energy, total_run
from host.report.formats import format_number
from host.report.svg import MUTED, NARROW, SERIES, SURFACE, Chart, draw, legend, printable

_HEIGHT = 270.0
# More points than this are thinned out: a page has fewer pixels.
_MOST_POINTS = 240
_MOST_LINES = 6
_MARKED_POINTS = 40
_LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P")
_HATCHES = ("", "///", "\\\\\\", "xxx", "|||", "+++", "---")


def thin(rounds: Sequence[RoundRecord], most: int = _MOST_POINTS) -> list[RoundRecord]:
    """Return at most `most` of the rounds, evenly spread, the first and the last among them."""
    if len(rounds) <= most:
        return list(rounds)
    return [rounds[round(index * (len(rounds) - 1) / (most - 1))] for index in range(most)]


def progress_charts(rounds: Sequence[RoundRecord], target: float | None) -> list[Chart]:
    """Return accuracy and loss over the rounds, and over the array's seconds."""
    kept, clock, last = thin(rounds), total_run(rounds).clock, rounds[-1]
    numbers = [float(record.round) for record in kept]
    ends = [record.start_seconds + record.array_seconds for record in kept]
    told = f"accuracy {last.accuracy:.4f} and loss {format_number(last.test_loss)} after round {last.round}"
    return [
        Chart(
            "progress-rounds",
            "Accuracy and loss over rounds",
            "Accuracy (0 to 1) and mean cross-entropy of the averaged model on held-out records; training loss over "
            "the records trained on." + (f" Thin line: the target, {target:g}." if target is not None else ""),
            draw(
                "progress-rounds",
                f"Accuracy and loss over rounds: {told}.",
                (NARROW, _HEIGHT * 1.25),
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
                (NARROW, _HEIGHT * 1.25),
                lambda figure: _progress(figure, kept, ends, target, f"array seconds ({clock})", whole=False),
            ),
        ),
    ]


def _progress(
    figure: Figure, rounds: Sequence[RoundRecord], x: Sequence[float], target: float | None, label: str, whole: bool
) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True)
    marker = "o" if len(x) <= _MARKED_POINTS else ""
    upper.plot(x, [record.accuracy for record in rounds], color=SERIES[0], marker=marker, markersize=4)
    upper.set_title("accuracy (held-out)")
    upper.set_ylim(0, 1.02)
    if target is not None:
        upper.axhline(target, color=MUTED, linewidth=1, linestyle="--")
    lower.plot(
        x, [record.test_loss for record in rounds], color=SERIES[0], marker=marker, markersize=4, label="held-out"
    )
    lower.plot(
        x,
        [record.train_loss for record in rounds],
        color=SERIES[1],
        marker="s" if marker else "",
        markersize=4,
        linestyle="--",
        label="training",
    )
    lower.set_title("loss")
    losses = [loss for record in rounds for loss in (record.test_loss, record.train_loss) if math.isfinite(loss)]
    if losses:
        lower.set_ylim(min(0.0, *losses), max(1e-9, *losses) * 1.08)
    else:
        _say(lower, "no loss was a number")
    _axis(lower, x, label, whole)
    lower.legend(loc="upper right")


def throughput_chart(rounds: Sequence[RoundRecord], devices: Sequence[str]) -> Chart:
    """Return the rate of each drive in each round; of many drives the band between the slowest and the fastest."""
    kept, totals = thin(rounds), total_run(rounds)
    rates = _rates(kept, devices)
    told = f"mean {totals.images_per_device_second:.4g} images per device second over {len(devices)} drives"
    many = len(devices) > _MOST_LINES
    return Chart(
        "throughput",
        "Throughput of the drives",
        f"Images per device second ({totals.clock}) in each round: records over compute seconds of the drive."
        + (" The area spans all drives." if many else " A gap: the drive returned nothing."),
        draw(
            "throughput",
            f"Throughput per round: {told}.",
            (NARROW, _HEIGHT),
            lambda figure: _throughput(figure, kept, rates, many, totals.clock),
        ),
    )


def _rates(rounds: Sequence[RoundRecord], devices: Sequence[str]) -> dict[str, list[float]]:
    """Return device -> images per device second in each round; NaN where it returned nothing."""
    known = [
        {part.device: part.samples / part.device_seconds.total for part in record.devices if part.device_seconds.total}
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
            linestyle=_LINE_STYLES[index % len(_LINE_STYLES)],
            marker=_MARKERS[index % len(_MARKERS)] if len(x) <= _MARKED_POINTS else "",
            markersize=4,
            label=printable(name, 16),
        )
    finite = [value for values in rates.values() for value in values if math.isfinite(value)]
    axes.set_ylim(0, max(finite, default=1.0) * 1.08)
    axes.set_ylabel(f"images / device s ({clock})")
    _axis(axes, x, "round", whole=True)
    legend(figure, axes, 3)


def _band(axes: Axes, x: Sequence[float], rates: np.ndarray) -> None:
    known = [(at, column[np.isfinite(column)]) for at, column in zip(x, rates.T, strict=True)]
    known = [(at, column) for at, column in known if column.size]
    at = [place for place, _ in known]
    low, high = [column.min() for _, column in known], [column.max() for _, column in known]
    axes.fill_between(at, low, high, color=SERIES[0], alpha=0.25, label="slowest to fastest")
    axes.plot(at, [np.median(column) for _, column in known], color=SERIES[0], label="median")


def power_chart(rounds: Sequence[RoundRecord]) -> Chart | None:
    """Return power over array time, stacked; None if the records know no energy."""
    energies = [group_energy(record) for record in rounds]
    timed = [(record, joules) for record, joules in zip(rounds, energies, strict=True) if record.array_seconds > 0]
    if not any(sum(joules.values()) for _, joules in timed):
        return None
    total, clock = total_run(rounds), total_run(rounds).clock
    watts = total.energy_joules / total.array_seconds
    told = f"mean {watts:.4g} W over {total.array_seconds:.4g} array seconds"
    return Chart(
        "power",
        "Power over array time",
        f"Mean watts of each round over array seconds ({clock}), stacked. Modelled from the profiles' watts, not "
        "measured; see the figures marked assumed below.",
        draw(
            "power",
            f"Power over array time: {told}.",
            (NARROW, _HEIGHT * 1.15),
            lambda figure: _power(figure, timed, clock),
        ),
    )


def _power(figure: Figure, timed: Sequence[tuple[RoundRecord, dict[str, float]]], clock: str) -> None:
    edges, heights = _bin_power(timed)
    axes = figure.subplots()
    bottom = np.zeros(len(edges) - 1)
    for index, (group, watts) in enumerate(heights.items()):
        axes.stairs(
            bottom + watts,
            edges,
            baseline=bottom,
            fill=True,
            facecolor=SERIES[index % len(SERIES)],
            hatch=_HATCHES[index % len(_HATCHES)],
            edgecolor=SURFACE,
            linewidth=0.4,
            label=group,
        )
        bottom = bottom + watts
    axes.set_ylabel("watts")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel(f"array seconds ({clock})")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    legend(figure, axes, 2)


def _bin_power(
    timed: Sequence[tuple[RoundRecord, dict[str, float]]],
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return edges in seconds and watts per group between them; neighbouring rounds are joined if there are many."""
    size = math.ceil(len(timed) / _MOST_POINTS)
    chunks = [timed[index : index + size] for index in range(0, len(timed), size)]
    edges = [chunk[0][0].start_seconds for chunk in chunks]
    last = timed[-1][0]
    edges.append(last.start_seconds + last.array_seconds)
    groups = list(dict.fromkeys([*GROUPS, *(group for _, joules in timed for group in joules)]))
    watts = {
        group: np.array(
            [
                sum(joules.get(group, 0.0) for _, joules in chunk) / sum(record.array_seconds for record, _ in chunk)
                for chunk in chunks
            ]
        )
        for group in groups
    }
    return edges, {group: values for group, values in watts.items() if values.any()}


def link_chart(rounds: Sequence[RoundRecord]) -> Chart:
    """Return the bytes over the host link up to each round, beside what the baseline would have read."""
    sent, received, read = (
        np.cumsum([sum(getattr(part, name) for part in record.devices) for record in rounds], dtype=float)
        for name in ("sent_bytes", "received_bytes", "flash_read_bytes")
    )
    total = format_bytes(float(sent[-1] + received[-1]))
    told = f"{total} in this run, {format_bytes(float(read[-1]))} for a host that reads every record it trains on"
    return Chart(
        "link",
        "Bytes over the host link",
        "Counted on the wire, up to and with each round: weights to the drives and back. Baseline: a host that reads "
        "each record from the drives each time it trains on it.",
        draw(
            "link",
            f"Bytes over the host link: {told}.",
            (NARROW, _HEIGHT),
            lambda figure: _link(figure, rounds, {"to drives": sent, "to host": received}, read),
        ),
    )


def _link(figure: Figure, rounds: Sequence[RoundRecord], ours: dict[str, np.ndarray], baseline: np.ndarray) -> None:
    axes = figure.subplots()
    keep = sorted({round(index) for index in np.linspace(0, len(rounds) - 1, min(len(rounds), _MOST_POINTS))})
    x = [float(rounds[index].round) for index in keep]
    lines = {
        "this run, both": np.sum(list(ours.values()), axis=0),
        **{f"this run, {name}": values for name, values in ours.items()},
    }
    lines["baseline: records read"] = baseline
    factor, unit = _byte_unit(max(float(values[-1]) for values in lines.values()))
    for index, (name, values) in enumerate(lines.items()):
        axes.plot(
            x,
            [values[position] / factor for position in keep],
            color=SERIES[index],
            linestyle=_LINE_STYLES[index],
            marker=_MARKERS[index] if len(x) <= _MARKED_POINTS else "",
            markersize=4,
            label=name,
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit)
    _axis(axes, x, "round", whole=True)
    legend(figure, axes, 2)


def _byte_unit(largest: float) -> tuple[float, str]:
    units: list[tuple[float, str]] = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
    return next(((factor, unit) for factor, unit in units if largest >= factor), (1.0, "B"))


def _axis(axes: Axes, x: Sequence[float], label: str, whole: bool) -> None:
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))
    if len(x) == 1:  # one point needs room around it
        axes.set_xlim(x[0] - 1, x[0] + 1) if whole else axes.set_xlim(0, x[0] * 2 or 1)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=MUTED)
