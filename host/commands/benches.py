"""`csd-emu bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from csd_emu.paths import Paths
from host import printing
from host.commands.options import Json
from host.console import StageProgress
from host.interrupts import INTERRUPTS
from host.outputs import print_json


def bench(
    name: Annotated[
        str, typer.Argument(help="repeatability, startup, slowdown, memory, image, calibration, throttles or resume")
    ],
    seed: Annotated[int, typer.Option(help="of everything random", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Measure one of the project's promises."""
    with INTERRUPTS.deferred():
        from host.bench import run_bench

    with StageProgress(quiet=as_json) as progress:
        report = run_bench(name, Paths.default(), progress, seed)
    print_json(report) if as_json else printing.print_bench(report)
