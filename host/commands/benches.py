"""`csd-emu bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from csd_emu.paths import Paths
from host import printing
from host.commands.completion import complete_bench
from host.commands.options import Json
from host.console import StageProgress
from host.interrupts import INTERRUPTS
from host.outputs import BenchList, NamedText, print_json


def bench(
    name: Annotated[
        str | None, typer.Argument(help="which one; without, they are listed", autocompletion=complete_bench)
    ] = None,
    seed: Annotated[int, typer.Option(help="of everything random", min=0)] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="a short one, with native drives alone (kill)")] = False,
    minutes: Annotated[float | None, typer.Option(help="for how long (soak)", min=1.0, max=10_080.0)] = None,
    as_json: Json = False,
) -> None:
    """Measure one of the project's promises, or list them."""
    with INTERRUPTS.deferred():
        from host.bench import list_benches, run_bench

    if name is None:
        benches = BenchList([NamedText(*each) for each in list_benches().items()])
        print_json(benches) if as_json else printing.print_names(benches.benches)
        return
    with StageProgress(quiet=as_json) as progress:
        report = run_bench(name, Paths.default(), progress, seed, quick=quick, minutes=minutes)
    print_json(report) if as_json else printing.print_bench(report)
