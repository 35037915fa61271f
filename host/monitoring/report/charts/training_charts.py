"""The charts of rounds: accuracy and loss, throughput, power and bytes over the host link."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from msgspec.structs import replace

from csd_emu.perfmodel.power import CHASSIS
from csd_emu.util.node_names import HOST
from firmware_agent.common.units import format_bytes
from host.core.records import RoundRecord
from host.core.run_stats import RunStats
from host.monitoring.charts.chart import MOST_LINES, Chart, Pane, Point, chunk, make_curve, make_lines, thin
from host.monitoring.charts.run_curves import progress_panes, progress_values
from host.monitoring.report.formats import format_number

# Who draws what, in the order in which it is stacked.
GROUPS = ("drives: idle", "drives: cpu", "drives: dram", "drives: flash", "drives: link", HOST, CHASSIS)
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_PATTERNS = ("", "/", "\\", "x", "|", "+", "-")


def progress_charts(rounds: Sequence[RoundRecord], target: float | None) -> list[Chart]:
    """Return accuracy and loss over the rounds, and over the array's seconds."""
    clock, last = RunStats.of(rounds).clock, rounds[-1]
    accuracy = "no accuracy" if math.isnan(last.accuracy) else f"accuracy {last.accuracy:.4f}"
    told = f"{accuracy} and loss {format_number(last.test_loss)} after round {last.round}"

    def panes(place: Callable[[RoundRecord], float]) -> list[Pane]:
        values = [(place(record), progress_values(record)) for record in rounds]
        return progress_panes({name: thin([(x, each[name]) for x, each in values]) for name in values[0][1]}, target)

    return [
        Chart(
            name="progress-rounds",
            title="Accuracy and loss over rounds",
            caption="Accuracy (0 to 1) and mean loss of the host's weights on held-out records; training loss "
            "over the records trained on." + (f" Thin line: the target, {target:g}." if target is not None else ""),
            told=f"Accuracy and loss over rounds: {told}.",
            x_title="round",
            panes=panes(lambda record: record.round),
            whole=True,
        ),
        Chart(
            name="progress-time",
            title="The same over array seconds",
            caption=f"Array seconds ({clock}): compute, flash and link of the drives, composed. Not wall time.",
            told=f"Accuracy and loss over array seconds: {told}.",
            x_title=f"array seconds ({clock})",
            panes=panes(lambda record: record.end_seconds),
        ),
    ]


def throughput_chart(rounds: Sequence[RoundRecord], devices: Sequence[str]) -> Chart:
    """Return the rate of each drive in each round; of many drives the band between the slowest and the fastest."""
    totals = RunStats.of(
        replace(each, devices=[part for part in each.devices if part.device in devices]) for each in rounds
    )
    rates = [{part.device: part.records_per_device_second for part in record.in_time} for record in rounds]
    caption = f"Records per device second ({totals.clock}) in each round: records over compute seconds of the drive."
    if len(devices) <= MOST_LINES:
        caption += " A gap: the drive returned nothing in time."
        curves = make_lines((name, thin(_over_rounds(rounds, [of.get(name) for of in rates]))) for name in devices)
    else:
        caption += " The area spans all drives."
        known = [[rate for name in devices if (rate := of.get(name))] for of in rates]
        spread = thin(
            [(each.round, min(of), np.median(of), max(of)) for each, of in zip(rounds, known, strict=True) if of]
        )
        curves = [
            make_curve("slowest to fastest", spread, "s1", fill="band"),
            make_curve("median", [(x, median) for x, _, median, _ in spread], "s1"),
        ]
    mean = f"mean {totals.records_per_device_second:.4g} records per device second over {len(devices)} drives"
    return Chart(
        name="throughput",
        title="Throughput of the drives",
        caption=caption,
        told=f"Throughput per round: {mean}.",
        x_title="round",
        panes=[Pane(curves=curves, unit=f"records / device s ({totals.clock})", low=0.0)],
        whole=True,
    )


def power_chart(rounds: Sequence[RoundRecord]) -> Chart | None:
    """Return power over array time, stacked; None if the records know no energy."""
    timed = [(record, group_energy(record)) for record in rounds if record.array_seconds > 0]
    groups = [
        name
        for name in dict.fromkeys([*GROUPS, *(name for _, joules in timed for name in joules)])
        if any(joules.get(name) for _, joules in timed)
    ]
    if not groups:
        return None
    totals, chunks = RunStats.of(rounds), chunk(timed)
    ends = [chunks[0][0][0].start_seconds, *(part[-1][0].end_seconds for part in chunks)]
    curves = []
    for index, name in enumerate(groups):
        watts = [
            math.fsum(joules.get(name, 0.0) for _, joules in part) / math.fsum(each.array_seconds for each, _ in part)
            for part in chunks
        ]
        look = {"colour": f"s{index % 8 + 1}", "pattern": _PATTERNS[index % len(_PATTERNS)]}
        curves.append(make_curve(name, zip(ends, [*watts, watts[-1]], strict=True), steps=True, fill="stacked", **look))
    mean = f"{totals.energy_joules / totals.array_seconds:.4g}"
    return Chart(
        name="power",
        title="Power over array time",
        caption=f"Mean watts of each round over array seconds ({totals.clock}), stacked. {_origin(rounds)}; see the "
        "figures marked assumed below.",
        told=f"Power over array time: mean {mean} W over {totals.array_seconds:.4g} array seconds.",
        x_title=f"array seconds ({totals.clock})",
        panes=[Pane(curves=curves, unit="watts", low=0.0)],
        x_range=(ends[0], ends[-1]),
    )


def group_energy(record: RoundRecord) -> dict[str, float]:
    """Return group -> joules of one round; see `GROUPS`. What is of no known group goes by its own component name."""
    joules = dict.fromkeys(GROUPS, 0.0)
    for node, parts in record.node_joules.items():
        for component, value in parts.items():
            group = _group(node, component)
            joules[group] = joules.get(group, 0.0) + value
    return joules


def _group(node: str, component: str) -> str:
    if CHASSIS in (node, component):
        return CHASSIS
    return HOST if node == HOST else f"drives: {component}"


def link_chart(rounds: Sequence[RoundRecord]) -> Chart:
    """Return the bytes over the host link up to each round, beside what the baseline would have read."""
    sent, received, read = (
        list(accumulate(float(sum(getattr(part, name) for part in parts)) for parts in by_round))
        for name, by_round in (
            ("sent_bytes", [record.devices for record in rounds]),
            ("received_bytes", [record.devices for record in rounds]),
            ("flash_read_bytes", [record.in_time for record in rounds]),
        )
    )
    both = [up + down for up, down in zip(sent, received, strict=True)]
    lines = {
        "this run, both": both,
        "this run, to drives": sent,
        "this run, to host": received,
        "baseline: records read": read,
    }
    factor, unit = next((each for each in _BYTE_UNITS if max(both[-1], read[-1]) >= each[0]), (1.0, "B"))
    baseline = f"{format_bytes(read[-1])} for a host that reads every record it trains on"
    scaled = ((name, _over_rounds(rounds, [value / factor for value in values])) for name, values in lines.items())
    return Chart(
        name="link",
        title="Bytes over the host link",
        caption="Counted on the wire, up to and with each round: weights to the drives and back. Baseline: a host that "
        "reads each record from the drives each time it trains on it.",
        told=f"Bytes over the host link: {format_bytes(both[-1])} in this run, {baseline}.",
        x_title="round",
        panes=[Pane(curves=make_lines((name, thin(points)) for name, points in scaled), unit=unit, low=0.0)],
        whole=True,
    )


def _over_rounds(rounds: Sequence[RoundRecord], values: Sequence[float | None]) -> list[Point]:
    return [(record.round, math.nan if each is None else each) for record, each in zip(rounds, values, strict=True)]


def _origin(rounds: Sequence[RoundRecord]) -> str:
    """Return where the watts come from."""
    modelled = "modelled from the profiles' watts, not measured"
    if metered := sorted({part.device for record in rounds for part in record.devices if part.metered is not None}):
        return f"What {', '.join(metered)} drew at work (measured) was read from their own sensors, all else {modelled}"
    return modelled.capitalize()
