"""`csd-emu top` on the terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from firmware_agent.common.errors import EnvironmentUnfit
from host.cli.top_report import TopDevice, TopReport
from host.cli.top_screen import Recent, make_report, scrape
from host.core.console import console
from host.monitoring.run_registry import LiveRun

_COLOURS = {"training": "green", "ready": "cyan", "lost": "red"}
_NONE = "-"
# Below this width the columns that matter least are left out.
_WIDE = 110
_RECENT = "of the last round seen to end; before, since the run began"


def print_top(report: TopReport) -> None:
    """Print a report once."""
    console.print(render(report, console.width, "since the run began"))


def watch(run: LiveRun, interval_seconds: float, goes_on: Callable[[], bool]) -> None:
    """Show the run until it has ended; `goes_on` tells whether it is still announced.

    Raises:
        EnvironmentUnfit: it goes on, and its metrics do not answer.
        KeyboardInterrupt: the user has seen enough.
    """
    recent, pause = Recent(), threading.Event()
    report = make_report(run, recent.add(scrape(run)))
    with Live(render(report, console.width, _RECENT), console=console, auto_refresh=False) as live:
        while True:
            pause.wait(interval_seconds)
            try:
                report = make_report(run, recent.add(scrape(run)))
            except EnvironmentUnfit:
                if goes_on():
                    raise
                break
            live.update(render(report, console.width, _RECENT), refresh=True)
    console.print(f"the run has ended: {run.run_directory}", soft_wrap=True)


def render(report: TopReport, width: int, rates: str) -> RenderableType:
    """Return the view for a terminal `width` characters wide; `rates` says what rates and watts are means of."""
    return Group(*_head(report), _table(report, width >= _WIDE), Text(f"rates and W: means {rates}", style="dim"))


def _head(report: TopReport) -> list[Text]:
    accuracy = _NONE if report.accuracy is None else f"{report.accuracy:.4f}"
    clock = report.clock or "no clock yet"
    first = f"{report.array} ({report.engine}, {report.model})  round {report.round}  accuracy {accuracy}"
    second = (
        f"array: {_number(report.records_per_array_second, 1)} records/s, {report.array_seconds:.3f} s ({clock})  "
        f"{report.energy_joules:.1f} J  link {_megabytes(report.host_link_bytes)}"
    )
    third = f"emulating it took {report.wall_seconds:.1f} s (wall)"
    head = [Text(first, style="bold"), Text(second), Text(third, style="dim")]
    return head if report.step is None else [head[0], _steps(report), *head[1:]]


def _steps(report: TopReport) -> Text:
    batch = _NONE if report.global_batch_size is None else str(report.global_batch_size)
    return Text(f"step {report.step}  global batch {batch}  devices' batches changed {report.retunes} times")


def _table(report: TopReport, wide: bool) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("drive", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("clock", no_wrap=True)
    slowdowns = any(device.slowdown_ratio is not None for device in report.devices)
    headings = ["batch", *(["slow-\ndown"] if slowdowns else []), "records/\ndevice s"]
    headings += ["device s\ncomputing", "device s\nelapsed"] if wide else ["device s"]
    headings += ["W", "J", "link", *(["memory"] if wide else [])]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for device in report.devices:
        table.add_row(*_row(device, wide, slowdowns))
    return table


def _row(device: TopDevice, wide: bool, slowdowns: bool) -> list[Text | str]:
    cells: list[Text | str] = [
        device.device,
        Text(device.state or _NONE, style=_COLOURS.get(device.state, "")),
        device.clock or _NONE,
        _NONE if device.batch_size is None else str(device.batch_size),
        *([_number(device.slowdown_ratio, 2)] if slowdowns else []),
        _number(device.records_per_device_second, 1),
    ]
    if wide:
        cells.append(f"{device.compute_seconds:.3f}")
    cells += [
        f"{device.device_seconds:.3f}",
        _number(device.power_watts, 2),
        f"{device.energy_joules:.2f}",
        _megabytes(device.host_link_bytes),
    ]
    if wide:
        cells.append(_NONE if device.memory_bytes is None else _megabytes(device.memory_bytes))
    return cells


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
