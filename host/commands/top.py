"""`csd-emu top`."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from csd_emu.paths import Paths
from host.commands.completion import complete_array
from host.commands.options import Json
from host.interrupts import INTERRUPTS
from host.outputs import print_json


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
        from host.live import list_live
        from host.top import Window, find_run, make_report, scrape
        from host.top_view import print_top, watch

    arrays = Paths.default().arrays
    run = find_run(list_live(arrays), array)
    if not once and not as_json:
        with contextlib.suppress(KeyboardInterrupt):
            watch(run, interval, lambda: run in list_live(arrays))
        return
    report = make_report(run, Window(None, scrape(run)))
    print_json(report) if as_json else print_top(report)
