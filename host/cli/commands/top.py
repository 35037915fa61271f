"""`csd-emu top`."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from host.cli.common_options import Json
from host.cli.completion import complete_array
from host.cli.json_output import print_json
from host.core.interrupts import INTERRUPTS


def top(
    array: Annotated[
        str | None,
        typer.Argument(help="name of the array; not needed if only one run goes on", autocompletion=complete_array),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="show it once, with means since the run began")] = False,
    interval: Annotated[float, typer.Option(help="seconds between looks", min=0.1, max=3600)] = 1.0,
    as_json: Json = False,
) -> None:
    """Show a run in progress: its drives, their speed and power in device time, what it has cost."""
    with INTERRUPTS.deferred():
        from host.cli.top_report import ScrapeWindow, find_run, make_report, print_top, scrape, watch
        from host.monitoring.run_registry import list_live

    arrays = Paths.default().arrays
    run = find_run(list_live(arrays), array)
    if not once and not as_json:
        with contextlib.suppress(KeyboardInterrupt):
            watch(run, interval, lambda: run in list_live(arrays))
        return
    report = make_report(run, ScrapeWindow(None, scrape(run)))
    print_json(report) if as_json else print_top(report)
