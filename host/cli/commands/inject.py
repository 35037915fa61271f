"""`csd-emu inject`."""

from __future__ import annotations

from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from host.cli.common_options import Json
from host.cli.completion import complete_array, complete_fault
from host.cli.json_output import print_json
from host.core.console import StageProgress
from host.core.interrupts import INTERRUPTS


def inject(
    array: Annotated[
        str, typer.Argument(help="name of an array that is up, or of a run's", autocompletion=complete_array)
    ],
    device: Annotated[str, typer.Argument(help="name of the drive, such as csd-01")],
    fault: Annotated[
        str,
        typer.Argument(
            help="kill, revive, freeze, thaw, cut, heal, slow, corrupt, fill or clear (docs/faults.md)",
            autocompletion=complete_fault,
        ),
    ],
    weight: Annotated[
        int | None, typer.Option(help="slow: of the competing task, against the trainer's 100; 0 ends it")
    ] = None,
    after: Annotated[float, typer.Option(min=0.0, help="wall seconds to wait before")] = 0.0,
    duration: Annotated[
        float | None, typer.Option("--for", min=0.0, help="wall seconds after which the fault is undone")
    ] = None,
    as_json: Json = False,
) -> None:
    """Do harm to one drive of an array that is up, while a run is going on or not."""
    with INTERRUPTS.deferred():
        from host.app.inject_fault import Injection, inject_fault
        from host.cli.commands.arrays import print_injection

        request = Injection.read(array, device, fault, weight, after, duration)
    with StageProgress(quiet=as_json) as progress:
        report = inject_fault(request, Paths.default(), progress)
    print_json(report) if as_json else print_injection(report)
