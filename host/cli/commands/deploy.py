"""`csd-emu deploy INVENTORY VERB`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.cli.common_options import Json
from host.cli.json_output import print_json
from host.core.console import StageProgress
from host.core.interrupts import INTERRUPTS


class FormChoice(StrEnum):
    """How the agent can be installed."""

    wheels = "wheels"
    rootfs = "rootfs"


Names = Annotated[str | None, typer.Option(metavar="A,B", help="only these drives")]
Groups = Annotated[str | None, typer.Option(metavar="A,B", help="only drives of these groups")]


def deploy(
    inventory: Annotated[Path, typer.Argument(metavar="INVENTORY.YAML", help="which drives, and how to reach them")],
    verb: Annotated[str, typer.Argument(help="what to do on each; an unknown one lists them")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[DRIVE]...", help="only these drives; needed by revoke")
    ] = None,
    jobs: Annotated[int, typer.Option(help="drives at a time, at most", min=1)] = 8,
    drives: Names = None,
    groups: Groups = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="for each drive, as in 10 min")] = "",
    batch: Annotated[int | None, typer.Option(help="upgrade: drives at a time; stops after a failure", min=1)] = None,
    lines: Annotated[int | None, typer.Option(help="logs: how many", min=1)] = None,
    renew: Annotated[bool, typer.Option("--renew", help="enrol: a new certificate for every drive")] = False,
    form: Annotated[FormChoice | None, typer.Option(help="install, upgrade: in place of the one that fits")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="stop, upgrade, rollback, uninstall: even while an array uses the drive")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put the agent on real drives over SSH, and look after it.

    Exit code: 0 all went well, 1 it failed on some drive or left some out, 2 bad input.
    """
    with INTERRUPTS.deferred():
        from host.cli.tables.deploy_table import print_deploy
        from host.deploy.deploy_report import exit_code
        from host.deploy.progress_board import LiveBoard
        from host.deploy.run_verb import DeployRequest, read_seconds
        from host.deploy.run_verb import deploy as run_deploy
        from host.deploy.verbs.verb_table import VERBS, VerbOptions

    request = DeployRequest(
        inventory,
        verb,
        [*(names or []), *_split("drives", drives)],
        _split("groups", groups),
        jobs,
        dry_run,
        read_seconds(timeout) if timeout else None,
        VerbOptions(lines, form.value if form is not None else None, batch, renew or None, force or None),
    )
    with StageProgress(quiet=as_json) as progress, LiveBoard(quiet=as_json) as board:
        report = run_deploy(request, Paths.default(), progress, board)
    print_json(report) if as_json else print_deploy(report, VERBS[verb].columns)
    raise typer.Exit(exit_code(report))


def _split(option: str, given: str | None) -> list[str]:
    """Return the names of an option; an empty variable of a script must not become all drives."""
    names = [name for part in (given or "").split(",") if (name := part.strip())]
    if given is not None and not names:
        raise ConfigurationError(f"--{option}: names nothing; name at least one, or leave the option away for all")
    return names
