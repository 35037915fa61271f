"""`csd-emu bench`."""

from __future__ import annotations

from pathlib import Path
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
    quick: Annotated[bool, typer.Option("--quick", help="fewer cases, for a look; not every bench has it")] = False,
    cases: Annotated[int | None, typer.Option(help="how many cases (fuzz)", min=1)] = None,
    replay: Annotated[Path | None, typer.Option(help="a saved case, which alone is run again (fuzz)")] = None,
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
        report = run_bench(name, Paths.default(), progress, seed, quick=quick, cases=cases, replay=replay)
    print_json(report) if as_json else printing.print_bench(report)
