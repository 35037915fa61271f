"""`csd-emu profiles` and `csd-emu power fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from host.cli.common_options import Json
from host.cli.completion import complete_profile
from host.cli.json_output import print_json
from host.core.interrupts import INTERRUPTS

power_app = typer.Typer(no_args_is_help=True, help="Power models of drives and hosts.")


def profiles(
    name: Annotated[
        str | None, typer.Argument(help="one profile; all if none is given", autocompletion=complete_profile)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the figures of profiles, each with its unit and its source."""
    with INTERRUPTS.deferred():
        from host.cli.power_reports import report_profiles
        from host.cli.tables.power_table import print_profiles

    report = report_profiles(name, Paths.default())
    print_json(report) if as_json else print_profiles(report)


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
        from host.cli.power_reports import fit_log
        from host.cli.tables.power_table import print_power_fit

    report = fit_log(log, profile, name, Paths.default())
    print_json(report) if as_json else print_power_fit(report)
