"""`csd-emu power fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from host.cli.common_options import Json, complete_profile
from host.core.console import print_json
from host.core.interrupts import INTERRUPTS

power_app = typer.Typer(no_args_is_help=True, help="Power models of drives and hosts.")


def register(app: typer.Typer) -> None:
    """Add the group of commands to `app`."""
    app.add_typer(power_app, name="power")


@power_app.command("fit")
def power_fit(
    log: Annotated[Path, typer.Argument(metavar="LOG.CSV", help="seconds,utilisation,watts of a meter")],
    profile: Annotated[
        str, typer.Option(help="the profile whose other figures are kept", autocompletion=complete_profile)
    ],
    name: Annotated[str, typer.Option(help="of the new profile")],
    as_json: Json = False,
) -> None:
    """Fit idle and active watts to a meter's log, and write them as a profile of your own."""
    with INTERRUPTS.deferred():
        from csd_lab.power.power_fit import fit_log, print_power_fit

    report = fit_log(log, profile, name, Paths.default())
    print_json(report) if as_json else print_power_fit(report)
