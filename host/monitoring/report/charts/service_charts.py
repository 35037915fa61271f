"""The chart of drives in service: latency, commands and busy dies over the array's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from firmware_agent.common.errors import UnitError
from firmware_agent.common.units import SECONDS, parse_quantity
from host.core.records import RoundRecord
from host.core.run_stats import RunStats
from host.monitoring.charts.chart import MOST_LINES, Chart, Curve, Pane, Point, make_curve, make_lines, thin
from host.monitoring.service_sums import commands_per_second, sum_by_drive

Figure = Callable[[ServiceFigures], Sequence[float]]
"""What is drawn of a drive's round: values at equal distances."""


def service_chart(rounds: Sequence[RoundRecord], limit_seconds: float | None) -> Chart | None:
    """Return what the drives did for their host, with the limit of `protect`; None if no drive served one."""
    served = sum_by_drive(rounds)
    if not served:
        return None
    clock, few = RunStats.of(rounds).clock, len(served) <= MOST_LINES
    worst = max(each.p99_seconds for each in served.values())
    caption = (
        f"Of each round over array seconds ({clock}), as in the timeline: the 99th percentile of the host's commands, "
        "how many of them end in a second, and the share of time in which a die works."
    )
    caption += (
        " The percentiles are of single seconds where there are whole ones." if few else " Areas span all drives."
    )
    caption += "" if limit_seconds is None else f" Dashed line: the limit of protect, {limit_seconds * 1e3:g} ms."

    def pane(unit: str, figure: Figure, target: float | None = None, high: float | None = None) -> Pane:
        curves = _draw(rounds, list(served), figure)
        if target is not None:  # the line is in sight, however far below it the curves are
            high = 1.08 * max([target, *(y for each in curves for y in each.y if y is not None)])
        return Pane(curves=curves, unit=unit, low=0.0, high=high, target=target)

    def latencies(each: ServiceFigures) -> list[float]:
        return [1e3 * value for value in (each.second_p99_seconds if few else []) or [each.p99_seconds]]

    return Chart(
        name="host-io",
        title="Host I/O over array time",
        caption=caption,
        told=f"Host I/O of {len(served)} drives: the highest 99th percentile of a round is {worst * 1e3:.4g} ms.",
        x_title=f"array seconds ({clock})",
        panes=[
            pane("p99, ms", latencies, target=None if limit_seconds is None else limit_seconds * 1e3),
            pane("IOPS", lambda each: [commands_per_second(each)]),
            pane("dies busy, %", lambda each: [100 * each.die_busy_share], high=102.0),
        ],
        x_range=(rounds[0].start_seconds, rounds[-1].end_seconds or 1.0),
        wide=True,
    )


def protect_limit(job: Mapping[str, Any]) -> float | None:
    """Return the seconds of a job's `host_io: {protect: {p99: ...}}`, as written or resolved; None without one."""
    section: Any = job.get("host_io")
    for key in ("protect", "p99"):
        section = section.get(key) if isinstance(section, Mapping) else None
    try:
        return float(section) if isinstance(section, int | float) else parse_quantity(section, SECONDS, "2 ms")
    except UnitError:
        return None


def _draw(rounds: Sequence[RoundRecord], drives: Sequence[str], figure: Figure) -> list[Curve]:
    """Return a line for each drive, or of many the area between them and their median."""
    values = [
        {part.device: figure(part.service) for part in each.devices if part.service is not None} for each in rounds
    ]
    if len(drives) <= MOST_LINES:
        lines = ((name, thin(_over_time(rounds, [of.get(name, [np.nan]) for of in values]))) for name in drives)
        return make_lines(lines, steps=True)
    pairs = [(each, list(chain(*of.values()))) for each, of in zip(rounds, values, strict=True) if of]
    spread = thin([(each.start_seconds, min(of), float(np.median(of)), max(of)) for each, of in pairs])
    spread.append((rounds[-1].end_seconds, *spread[-1][1:]))
    medians = [(x, median) for x, _, median, _ in spread]
    return [
        make_curve("least to most", spread, "s1", fill="band", steps=True),
        make_curve("median", medians, "s1", steps=True),
    ]


def _over_time(rounds: Sequence[RoundRecord], values: Sequence[Sequence[float]]) -> list[Point]:
    """Return each round's values at equal distances; the last one lasts until the end."""

    def points() -> Iterator[Point]:
        for record, own in zip(rounds, values, strict=True):
            for number, value in enumerate(own):
                yield record.start_seconds + record.array_seconds * number / len(own), value

    return [*points(), (rounds[-1].end_seconds, values[-1][-1])]
