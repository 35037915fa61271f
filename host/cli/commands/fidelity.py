"""`csd-emu fidelity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from host.cli.json_output import print_json
from host.core.console import StageProgress
from host.core.interrupts import INTERRUPTS


def fidelity(
    drive: Annotated[str, typer.Argument(help="a drive of the inventory; it must be installed and enrolled")],
    inventory: Annotated[Path, typer.Option(metavar="DRIVES.YAML", help="which drives, and how to reach them")],
    model: Annotated[
        list[str] | None, typer.Option(help="a built-in name or my_net.py:build; can be repeated; else digits_cnn")
    ] = None,
    batches: Annotated[str, typer.Option(help="batch sizes to measure, two or more")] = "1,8,32",
    shape: Annotated[
        str | None, typer.Option("--input", metavar="CxHxW", help="shape of an image; built-in models have their own")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="steps per batch size", min=1, max=4096)] = None,
    seed: Annotated[int, typer.Option(help="of weights and images", min=0, max=2**31 - 1)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object, for scripts")] = False,
) -> None:
    """Measure models on a real drive, and say how far the emulation of its profile differs from it."""
    with INTERRUPTS.deferred():
        from host.app.real_drive import RealDrive, measure_fidelity
        from host.cli.tables.fidelity_table import print_fidelity
        from host.config.calibration_request import read_request, read_spec

        specs = map(read_spec, model or ["digits_cnn"])
        requests = [read_request(spec, shape, batches, steps, None, seed) for spec in specs]
        found = RealDrive.find(inventory, drive)
    with StageProgress(quiet=as_json) as progress:
        report = measure_fidelity(requests, found, Paths.default(), progress)
    print_json(report) if as_json else print_fidelity(report)
