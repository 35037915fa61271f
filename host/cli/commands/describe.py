"""`csd-emu describe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.cli.common_options import Json, complete_profile
from host.core.console import print_json
from host.core.interrupts import INTERRUPTS


def describe(
    array: Annotated[Path | None, typer.Argument(metavar="ARRAY.YAML", help="whose drives")] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="drives of this one instead", autocompletion=complete_profile)
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what drives offer, in the terms of SNIA's architecture for computational storage."""
    with INTERRUPTS.deferred():
        from host.cli.drive_description import describe_array, describe_profile, print_description

    if array is not None and profile is None:
        report = describe_array(array)
    elif array is None and profile is not None:
        report = describe_profile(profile, Paths.default())
    else:
        raise ConfigurationError("describe: give either ARRAY.YAML or --profile NAME, such as --profile newport")
    print_json(report) if as_json else print_description(report)
