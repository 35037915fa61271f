"""Fills the page: a run's figures into one HTML file that needs nothing else."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import msgspec
import yaml
from markupsafe import Markup

from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from csd_emu.profiles.profile import FigureEntry
from csd_emu.util.node_names import HOST
from firmware_agent.common.units import format_bytes
from host.core.figure_bands import describe_ends
from host.core.owned_files import write_whole
from host.core.records import EventKind, EventRecord, RoundRecord
from host.core.run_stats import RunStats
from host.core.summary import INSTRUCTIONS
from host.monitoring.charts.chart import Chart
from host.monitoring.charts.chart_timeline import Timeline, make_timeline
from host.monitoring.report.charts.chart_svg import ChartSvg, draw_chart, draw_timeline
from host.monitoring.report.charts.held_chart import held_chart
from host.monitoring.report.charts.plan_chart import plan_chart
from host.monitoring.report.charts.service_charts import protect_limit, service_chart
from host.monitoring.report.charts.step_charts import step_charts
from host.monitoring.report.charts.training_charts import link_chart, power_chart, progress_charts, throughput_chart
from host.monitoring.report.compare_baseline import compare
from host.monitoring.report.comparison import Comparison
from host.monitoring.report.formats import format_ends, format_number, format_quantity, format_seconds, format_share
from host.monitoring.report.load_run import RunData, load_run
from host.monitoring.report.run_decisions import COMPARED_STEPS, RunDecision, list_decisions
from host.monitoring.report.sync_report import describe_steps, step_tiles
from host.monitoring.report.tiles import describe_status, list_tiles
from host.monitoring.run_directory import REPORT_FILE, SLICES_FILE, TRACE_FILE
from host.monitoring.service_sums import bytes_per_second, commands_per_second, measure_by_drive, sum_by_drive


class ReportOutput(msgspec.Struct, frozen=True):
    """`csd-emu report`: the file, how far the run came, and how it compares with a host that trains alone.

    `metrics` are name -> drive -> what its client program returned last, in time.
    """

    report: str
    run_directory: str
    finished: bool
    rounds: int
    events: int
    notes: list[str]
    comparison: Comparison
    metrics: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)


_MOST_EVENTS, _MOST_ROUNDS, _MOST_DEVICES, _MOST_ROWS, _MOST_METRICS = 200, 60, 128, 40, 64
# Events of an ordinary life; a table of them says nothing.
_ORDINARY = (EventKind.JOINED, EventKind.LEFT)
_TRACES = {
    TRACE_FILE: "what each device did when, in all rounds",
    SLICES_FILE: "when each slice became ready, left, and was read at the other end, by device and direction",
}
_CLOCKS = {
    "counted": "counted from the instructions that the emulated drive executed, times the scales of its profile",
    "cycles": "in cycles of a modelled Cortex-A53, a nanosecond each at 1 GHz, not in instructions",
    "sampled": "counted for some steps on a virtual machine, times the scales of its profile; the others taken to be "
    "the mean of their kind",
    "modelled": "looked up in a calibration table: simulated, not measured in this run",
    "wall": "a stopwatch of the machine on which the agent ran; of an emulated drive it says nothing of a real one",
}


def write_report(directory: Path, output: Path | None = None, trusted: bool = False) -> ReportOutput:
    """Write the report of the run in `directory`, by default into it, and return what is in it.

    One of another user's must be `trusted`.

    Raises:
        ConfigurationError: it is no run directory, or a file in it is damaged.
        EnvironmentUnfit: the report cannot be written.
    """
    run = load_run(directory, trusted)
    comparison = compare(run)
    path = output if output is not None else directory / REPORT_FILE
    page = render(run, comparison, path.parent).encode("utf-8", "replace")
    write_whole(path, page, "free space, or give another file with --output", "the report")
    return ReportOutput(
        report=str(path),
        run_directory=str(directory),
        finished=run.summary is not None,
        rounds=len(run.rounds),
        events=len(run.events),
        notes=run.notes,
        comparison=comparison,
        metrics=_client_metrics(RunStats.of(run.rounds)),
    )


def render(run: RunData, comparison: Comparison, folder: Path | None = None) -> str:
    """Return the page as HTML; `folder` is where it will lie, by default the run directory."""
    totals = RunStats.of(run.rounds, run.devices)
    devices, energy, decisions = list(totals.devices), _energy(totals), list_decisions(run.rounds, run.events, run.plan)
    return (
        page_environment()
        .get_template("page.html.j2")
        .render(
            run=run,
            name=str(run.array.get("name") or run.path.name),
            totals=totals,
            tiles=list_tiles(run, totals, comparison, step_tiles(run.rounds, totals.clock)),
            status=describe_status(run),
            clocks={
                clock: _CLOCKS.get(clock, "of a kind that this version does not know")
                for clock in [*totals.clock.split("+"), str(run.array.get("core_model", ""))]
                if clock and clock != INSTRUCTIONS
            },
            charts=_charts(run, totals, decisions),
            traces=_traces(run, folder or run.path),
            devices=devices[:_MOST_DEVICES],
            hidden_devices=max(0, len(devices) - _MOST_DEVICES),
            energy=energy,
            metrics=_client_metrics(totals),
            healths={name: of.health for name, of in list(totals.devices.items())[:_MOST_DEVICES] if of.health},
            service=_services(run.rounds),
            measured=list(measure_by_drive(run.rounds).items()),
            most_devices=_MOST_DEVICES,
            limit=protect_limit(run.job),
            columns={
                "band": [(f"{each.ratio:g} newport drives", "n") for each in comparison.band],
                "energy": [(component, "n") for component in energy.get("components", [])],
            },
            rounds=run.rounds[-_MOST_ROUNDS:],
            sync=describe_steps(run.rounds, decisions),
            compared=COMPARED_STEPS,
            plan=run.plan if run.rounds else None,
            host_trains=HOST in devices,
            comparison=comparison,
            events=_events(run.events)[-_MOST_EVENTS:],
            hidden_events=max(0, len(_events(run.events)) - _MOST_EVENTS),
            configuration={
                name: yaml.safe_dump(dict(part), sort_keys=False)
                for name, part in (("array.yaml", run.array), ("job.yaml", run.job))
                if part
            },
            versions=_versions(run.versions),
            profiles=_profiles(run),
        )
    )


@functools.cache
def page_environment() -> jinja2.Environment:
    """Return what the pages' templates are filled with."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    environment.filters |= {
        "number": format_number,
        "band": format_ends,
        "ends": describe_ends,
        "quantity": format_quantity,
        "bytes": lambda value: format_bytes(value),
        "seconds": format_seconds,
        "share": format_share,
        "svg": lambda text: Markup(text),
    }
    return environment


def _clean(value: Any) -> Any:
    """Return text without characters that a file must not hold: a name or a message can bring any."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in value)


def _traces(run: RunData, folder: Path) -> list[tuple[str, str, str]]:
    """Return link, name and meaning of each trace that the run directory holds."""
    return [
        (quote(os.path.relpath(run.path / name, folder)), name, text)
        for name, text in _TRACES.items()
        if (run.path / name).is_file()
    ]


def list_charts(run: RunData, totals: RunStats, decisions: Sequence[RunDecision]) -> list[Chart]:
    """Return the charts of a run, the main ones first; none without a round."""
    if not run.rounds:
        return []
    target, devices = run.job.get("target"), list(totals.devices)
    accuracy = target.get("accuracy") if isinstance(target, Mapping) else None
    return [
        *progress_charts(run.rounds, accuracy if isinstance(accuracy, float | int) else None),
        throughput_chart(run.rounds, [name for name in devices if name != HOST]),
        link_chart(run.rounds),
        *([held] if run.held is not None and (held := held_chart(run.held)) is not None else []),
        *([power] if (power := power_chart(run.rounds)) is not None else []),
        *([plan_chart(run.plan)] if run.plan is not None else []),
        *([served] if (served := service_chart(run.rounds, protect_limit(run.job))) is not None else []),
        *step_charts(run.rounds, decisions, totals.clock),
    ]


def _charts(run: RunData, totals: RunStats, decisions: Sequence[RunDecision]) -> dict[str, ChartSvg]:
    if not (drawn := [draw_chart(chart) for chart in list_charts(run, totals, decisions)]):
        return {}
    if (timeline := _timeline(run, list(totals.devices))) is not None:
        drawn.append(draw_timeline(timeline))
    return {chart.name: chart for chart in drawn}


def _timeline(run: RunData, devices: Sequence[str]) -> Timeline | None:
    """Return the timeline of the first drives that have spans in the last rounds."""
    present = {span.device for record in run.rounds[-3:] for span in record.spans}
    drives = [name for name in dict.fromkeys([*devices, *sorted(present)]) if name in present and name != HOST]
    hidden = len(drives) - _MOST_ROWS
    return make_timeline(run.rounds, drives[:_MOST_ROWS], f"{hidden} more drives are not shown." if hidden > 0 else "")


def _client_metrics(totals: RunStats) -> dict[str, dict[str, float]]:
    devices = totals.devices.items()
    names = list(dict.fromkeys(name for _, own in devices for name in own.metrics))[:_MOST_METRICS]
    return {name: {key: own.metrics[name] for key, own in devices if name in own.metrics} for name in names}


def _services(rounds: Sequence[RoundRecord]) -> list[tuple[str, ServiceFigures, float, float]]:
    """Return drive, figures, commands and bytes per second of the drives that served a host."""
    return [(name, own, commands_per_second(own), bytes_per_second(own)) for name, own in sum_by_drive(rounds).items()]


def _energy(totals: RunStats) -> dict[str, Any]:
    """Return the components and the rows of the table of energy; empty if nothing is known of it."""
    nodes = {node: parts for node, parts in totals.node_joules.items() if parts}
    components = list(dict.fromkeys(component for parts in nodes.values() for component in parts))
    hidden = set(list(totals.devices)[_MOST_DEVICES:])
    rows = {node: parts for node, parts in nodes.items() if node not in hidden}
    total = {name: math.fsum(parts.get(name, 0.0) for parts in nodes.values()) for name in components}
    return {"components": components, "rows": rows, "total": total} if nodes else {}


def _events(events: Sequence[EventRecord]) -> list[EventRecord]:
    return [event for event in events if event.what not in _ORDINARY or event.detail]


def _versions(versions: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return who -> package -> version; devices with the same versions share a row."""
    host = versions.get("host")
    found = {"host": {str(key): str(value) for key, value in host.items()}} if isinstance(host, Mapping) else {}
    same: dict[tuple[tuple[str, str], ...], list[str]] = {}
    devices = versions.get("devices")
    for name, facts in devices.items() if isinstance(devices, Mapping) else ():
        if isinstance(facts, Mapping):
            same.setdefault(tuple((str(key), str(value)) for key, value in facts.items()), []).append(str(name))
    return found | {
        names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more with the same": dict(facts)
        for facts, names in same.items()
    }


def _profiles(run: RunData) -> dict[str, list[FigureEntry]]:
    known = {name: profile for name in dict.fromkeys(run.devices.values()) if (profile := run.profiles.get(name))}
    if run.host is not None and run.array:
        known[run.host.name] = run.host
    return {name: profile.entries() for name, profile in known.items()}
