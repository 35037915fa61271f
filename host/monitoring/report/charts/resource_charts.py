"""The charts of what a run used: power over array time, and bytes over the host link."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from firmware_agent.common.units import format_bytes
from host.core.records import RoundRecord
from host.core.run_stats import RunStats
from host.monitoring.report.charts.svg import NARROW, SERIES, SURFACE, Chart, draw, legend
from host.monitoring.report.charts.training_charts import (
    HEIGHT,
    LINE_STYLES,
    MARKED_POINTS,
    MARKERS,
    MOST_POINTS,
    set_axis,
)
from host.monitoring.report.energy_groups import GROUPS, group_energy

_HATCHES = ("", "///", "\\\\\\", "xxx", "|||", "+++", "---")


def power_chart(rounds: Sequence[RoundRecord]) -> Chart | None:
    """Return power over array time, stacked; None if the records know no energy."""
    energies = [group_energy(record) for record in rounds]
    timed = [(record, joules) for record, joules in zip(rounds, energies, strict=True) if record.array_seconds > 0]
    if not any(sum(joules.values()) for _, joules in timed):
        return None
    total = RunStats.of(rounds)
    clock = total.clock
    watts = total.energy_joules / total.array_seconds
    told = f"mean {watts:.4g} W over {total.array_seconds:.4g} array seconds"
    return Chart(
        "power",
        "Power over array time",
        f"Mean watts of each round over array seconds ({clock}), stacked. {_origin(rounds)}; see the figures "
        "marked assumed below.",
        draw(
            "power",
            f"Power over array time: {told}.",
            (NARROW, HEIGHT * 1.15),
            lambda figure: _power(figure, timed, clock),
        ),
    )


def _origin(rounds: Sequence[RoundRecord]) -> str:
    """Return where the watts come from."""
    modelled = "modelled from the profiles' watts, not measured"
    metered = sorted({part.device for record in rounds for part in record.devices if part.metered is not None})
    if metered:
        return f"What {', '.join(metered)} drew at work (measured) was read from their own sensors, all else {modelled}"
    return modelled.capitalize()


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
    size = math.ceil(len(timed) / MOST_POINTS)
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
    sent, received = (
        np.cumsum([sum(getattr(part, name) for part in record.devices) for record in rounds], dtype=float)
        for name in ("sent_bytes", "received_bytes")
    )
    counted = [sum(part.flash_read_bytes for part in record.in_time) for record in rounds]
    read = np.cumsum(counted, dtype=float)
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
            (NARROW, HEIGHT),
            lambda figure: _link(figure, rounds, {"to drives": sent, "to host": received}, read),
        ),
    )


def _link(figure: Figure, rounds: Sequence[RoundRecord], ours: dict[str, np.ndarray], baseline: np.ndarray) -> None:
    axes = figure.subplots()
    keep = sorted({round(index) for index in np.linspace(0, len(rounds) - 1, min(len(rounds), MOST_POINTS))})
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
            linestyle=LINE_STYLES[index],
            marker=MARKERS[index] if len(x) <= MARKED_POINTS else "",
            markersize=4,
            label=name,
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit)
    set_axis(axes, x, "round", whole=True)
    legend(figure, axes, 2)


def _byte_unit(largest: float) -> tuple[float, str]:
    units: list[tuple[float, str]] = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
    return next(((factor, unit) for factor, unit in units if largest >= factor), (1.0, "B"))
