"""From what is known of a run to what the page shows. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from csd_emu.perfmodel.timeline import HOST_READER
from csd_emu.util.node_names import HOST
from host.core.records import RoundRecord, StepRecord
from host.core.run_stats import RunStats
from host.monitoring.charts.chart import Chart, Curve, Pane, Point, make_curve, shorten_number
from host.monitoring.charts.chart_timeline import Timeline, make_timeline
from host.monitoring.charts.run_curves import progress_panes
from host.monitoring.decision_text import describe_step
from host.monitoring.page.page_state import HostIoNow, RoundNow, RunSoFar, SeriesNow
from host.monitoring.service_sums import commands_per_second

MOST_BATCH_CURVES, MOST_DRIVES = 4, 16
# Figures of a run that are its last round's.
_LAST_ROUNDS = ("records_per_device_second", "records_per_array_second", "watts")
_SLOW = 1.1


def make_charts(
    curves: Mapping[str, Sequence[Point]],
    batches: Mapping[str, Sequence[Point]],
    hidden: int,
    clock: str,
    target: float | None,
) -> list[Chart]:
    """Return the charts of a run.

    Args:
        curves: see `RunCurves`.
        batches: device -> batches over time, of those that are drawn one by one.
        hidden: how many devices have others.
        clock: of the array's seconds.
        target: accuracy at which the run ends; None without one.
    """

    def line(label: str, key: str, colour: str, **look: str) -> list[Curve]:
        return [make_curve(label, curves[key], colour, **look)] if curves.get(key) else []

    power = [
        *line("drives", "drive_watts", "s3", fill="stacked"),
        *line("host and chassis", "host_watts", "s7", fill="stacked"),
    ]
    cost = line("wall seconds that one array second took", "wall_per_array_second", "s4", dash="dash")
    losses = "above: share of held-out records; below: mean loss"
    sizes = list(_draw_batches(curves, batches, hidden))
    note = f" {hidden:,} more drives lie between largest and smallest." if hidden else ""
    array_rate = line("array, link and waiting included", "array_rate", "s1")
    device_rate = line("mean of a drive, compute alone", "device_rate", "s3")
    return [
        _chart("array-rate", "Array's throughput", "records / array s", clock, [_pane(array_rate)]),
        _chart("device-rate", "Drive's throughput", "records / device s", clock, [_pane(device_rate)]),
        _chart("accuracy", "Accuracy and loss", losses, clock, progress_panes(curves, target)),
        _chart("power", "Power", "W, modelled", clock, [_pane(power)]),
        _chart("batches", "Batch sizes", "records per step", clock, [_pane(sizes)], note),
        _chart("cost", "Cost of emulation", "wall s per array s", clock, [_pane(cost)]),
    ]


def _chart(name: str, title: str, unit: str, clock: str, panes: list[Pane], note: str = "") -> Chart:
    says = ": says nothing of a drive" if name == "cost" else ""
    clock = clock or "no clock yet"
    caption = f"{unit}, over array seconds ({clock}){says}.{note}"
    return Chart(
        name=name, title=title, caption=caption, told=f"{title} in {unit}", x_title=f"array s ({clock})", panes=panes
    )


def _pane(curves: list[Curve]) -> Pane:
    return Pane(curves=curves, low=0.0)


def _draw_batches(
    curves: Mapping[str, Sequence[Point]], batches: Mapping[str, Sequence[Point]], hidden: int
) -> Iterable[Curve]:
    if "batch_median" in curves and (hidden or not batches):
        yield make_curve("largest", curves["batch_high"], "muted", steps=True, dash="dot")
        yield make_curve("median", curves["batch_median"], "ink", steps=True)
        yield make_curve("smallest", curves["batch_low"], "muted", steps=True, dash="dash")
    for index, (device, points) in enumerate(batches.items()):
        yield make_curve(device, points, f"s{index % 8 + 1}", steps=True)


def choose_batches(batches: Mapping[str, Sequence[Point]], end_seconds: float) -> tuple[dict[str, list[Point]], int]:
    """Return the batches of the drives that changed most often, up to the end, and how many others have some.

    The host's own would make those of all drives look alike.
    """
    known = {name: points for name, points in batches.items() if points and name != HOST}
    several = len(known) > MOST_BATCH_CURVES
    often = sorted((name for name in known if len(known[name]) > several), key=lambda name: -len(known[name]))
    drawn = {
        name: [*points, (max(end_seconds, points[-1][0]), points[-1][1])]
        for name, points in known.items()
        if name in often[:MOST_BATCH_CURVES]
    }
    return drawn, len(known) - len(drawn)


def make_series(name: str, points: Sequence[Point]) -> SeriesNow:
    """Return a curve without its looks."""
    curve = make_curve(name, points, "")
    return SeriesNow(curve.x, curve.y)


def show_timeline(
    rounds: Sequence[RoundRecord], devices: Collection[str], slowdowns: Mapping[str, float | None]
) -> Timeline | None:
    """Return the timeline of the drives that matter, in the array's order: late and slowed ones, then the last ones."""
    if not rounds:
        return None
    last = rounds[-1]
    ends: dict[str, float] = {}
    for span in last.spans:
        ends[span.device] = max(span.end_seconds, ends.get(span.device, 0.0))
    drives = [name for name in ends if name not in (HOST, HOST_READER)]
    odd = {part.device for part in last.devices if part.straggler}
    odd |= {name for name, slowdown in slowdowns.items() if (slowdown or 1.0) > _SLOW}
    shown = sorted(drives, key=lambda name: (name not in odd, -ends[name]))[:MOST_DRIVES]
    order = {name: number for number, name in enumerate(devices)}
    shown.sort(key=lambda name: (order.get(name, len(order)), name))
    note = f"{len(shown)} of {len(drives)} drives: the late and the slowed, then who was done last."
    return make_timeline(rounds, shown, note if len(drives) > len(shown) else "")


def describe_round(record: RoundRecord) -> RoundNow:
    """Return a round as a row of a table; `batch_size` is the middle one of its drives."""
    batches = [part.batch_size for part in record.devices if part.device != HOST]
    return RoundNow(
        round=record.round,
        accuracy=finite(record.accuracy),
        test_loss=finite(record.test_loss),
        train_loss=finite(record.train_loss),
        drives=sum(part.device != HOST for part in record.in_time),
        records_per_device_second=finite(record.records_per_device_second),
        records_per_array_second=_over(record.samples, record.array_seconds),
        watts=_over(record.total_joules, record.array_seconds),
        joules=record.total_joules,
        batch_size=statistics.median_low(batches) if batches else None,
        array_seconds=record.array_seconds,
        wall_seconds=record.wall_seconds,
        bands=RunStats.of([record]).all_bands,
    )


def describe_service(figures: ServiceFigures | None) -> HostIoNow | None:
    """Return what the page shows of a drive in service."""
    if figures is None:
        return None
    return HostIoNow(
        commands_per_second=shorten_number(commands_per_second(figures)),
        p99_seconds=shorten_number(figures.p99_seconds),
        queue_depth=shorten_number(figures.queue_depth),
    )


def sum_up(stats: RunStats, step: StepRecord | None, last: RoundNow | None) -> RunSoFar:
    """Return the run so far; `last` is the row of the last round, `step` the last step."""
    number, taken = (0, {}) if step is None else (step.step, describe_step(step))
    if last is None:
        return RunSoFar(steps=number, last_step=taken)
    return RunSoFar(
        round=last.round,
        steps=number,
        accuracy=last.accuracy,
        test_loss=last.test_loss,
        train_loss=last.train_loss,
        records=stats.samples,
        records_per_device_second=last.records_per_device_second,
        records_per_array_second=last.records_per_array_second,
        array_seconds=stats.array_seconds,
        wall_seconds=stats.wall_seconds,
        last_array_seconds=last.array_seconds,
        last_wall_seconds=last.wall_seconds,
        watts=last.watts,
        joules=stats.energy_joules,
        machine_joules=stats.machine_joules,
        bands=stats.all_bands | {name: last.bands[name] for name in _LAST_ROUNDS if name in last.bands},
        sampling=stats.sampling.text if stats.sampling is not None else "",
        last_step=taken,
    )


def finite(value: float) -> float | None:
    """Return `value`, or None if it is no finite number."""
    return value if math.isfinite(value) else None


def _over(above: float, below: float) -> float | None:
    return above / below if below > 0 else None
