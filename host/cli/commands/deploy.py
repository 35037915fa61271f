"""`csd-emu deploy VERB INVENTORY`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer.core import TyperGroup

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.units import format_bytes
from host.cli.common_options import Json
from host.core.console import StageProgress, console, errors, print_json
from host.core.interrupts import INTERRUPTS
from host.deploy.compatibility import Form
from host.deploy.verb_protocol import VERBS, DeployReport, VerbOptions, VerbOutcome, exit_code, find_verb

# Of results, in the order in which they are counted.
_COLOURS = {"done": "green", "unchanged": "green", "planned": "cyan", "skipped": "yellow", "failed": "red"}

INVENTORY_SUFFIXES = (".yaml", ".yml", ".json")

Names = Annotated[str | None, typer.Option(metavar="A,B", help="only these drives")]
Groups = Annotated[str | None, typer.Option(metavar="A,B", help="only drives of these groups")]


class DeployGroup(TyperGroup):
    """The verbs of `csd-emu deploy`."""

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Return the verb; behind the inventory it was in 0.1.0, and is understood there for one release.

        Raises:
            ConfigurationError: there is none of this name.
        """
        first, *rest = arguments
        if rest and first not in self.commands and Path(first).suffix in INVENTORY_SUFFIXES:
            verb = next((word for word in rest if word in self.commands), rest[0])
            errors.print(f"csd-emu deploy {first} {verb} is now csd-emu deploy {verb} {first}", markup=False)
            arguments = [verb, first, *(word for word in rest if word is not verb)]
        if not context.resilient_parsing:  # of completion
            find_verb(arguments[0], VerbOptions())
        return super().resolve_command(context, arguments)


deploy_app = typer.Typer(
    cls=DeployGroup,
    no_args_is_help=True,
    help="Put the agent on real drives over SSH, and look after it. Example: csd-emu deploy probe drives.yaml",
)


def deploy(
    context: typer.Context,
    inventory: Annotated[Path, typer.Argument(metavar="INVENTORY.YAML", help="which drives, and how to reach them")],
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
    form: Annotated[Form | None, typer.Option(help="install, upgrade: in place of the one that fits")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="stop, upgrade, rollback, uninstall: even while an array uses the drive")
    ] = False,
    as_json: Json = False,
) -> None:
    """Do what the verb says on each drive; exit code 1 if it failed on one or left one out."""
    with INTERRUPTS.deferred():
        from host.deploy.run_verb import DeployRequest, read_seconds
        from host.deploy.run_verb import deploy as run_deploy

    verb = str(context.info_name)
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


for _verb, _entry in VERBS.items():
    deploy_app.command(_verb, help=f"{_entry.help[:1].upper()}{_entry.help[1:]}.")(deploy)


def _split(option: str, given: str | None) -> list[str]:
    """Return the names of an option; an empty variable of a script must not become all drives."""
    names = [name for part in (given or "").split(",") if (name := part.strip())]
    if given is not None and not names:
        raise ConfigurationError(f"--{option}: names nothing; name at least one, or leave the option away for all")
    return names


def print_deploy(report: DeployReport, columns: Sequence[str]) -> None:
    """Print the text that drives gave, if any, a table of all drives, then a line for each on which it failed.

    Args:
        report: what was done.
        columns: names of facts that the table shows.
    """
    for drive in report.drives:
        if "text" in drive.facts:
            _print_text(drive.drive, str(drive.facts["text"]))
    shown = [name for name in columns if any(drive.facts.get(name) is not None for drive in report.drives)]
    # Units are with the figures.
    names = [name.removesuffix("_per_second").removesuffix("_bytes").removesuffix("_seconds") for name in shown]
    table = Table("drive", "result", *(name.replace("_", " ") for name in names), "what")
    for drive in report.drives:
        table.add_row(
            drive.drive,
            f"[{_COLOURS[drive.result]}]{drive.result}[/]",
            *(escape(_text(name, drive.facts.get(name))) for name in shown),
            "see below" if drive.result == "failed" else escape(drive.what),
        )
    console.print(table)
    for drive in report.drives:
        if drive.result == "failed":
            console.print(f"[red]✗[/] {drive.drive}: {escape(drive.what)}")
    console.print(f"{_count(report.drives)}; {report.wall_seconds:.1f} s of wall time")


def _print_text(drive: str, text: str) -> None:
    """Print lines that a drive wrote, below its name."""
    console.print(f"[bold]{drive}:[/]")
    for line in text.splitlines():
        console.print(line, markup=False, highlight=False, emoji=False)


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes_per_second"):
        return f"{format_bytes(value)}/s"
    if name.endswith("_bytes"):
        return format_bytes(value)
    return f"{value:.1f} s" if name.endswith("_seconds") else str(value)


def _count(drives: Sequence[VerbOutcome]) -> str:
    results = [drive.result.value for drive in drives]
    counts = ", ".join(f"{results.count(name)} {name}" for name in _COLOURS if name in results)
    return f"{len(results)} drive{'s' * (len(results) != 1)}: {counts}"


class LiveBoard:
    """A `host.deploy.run_verb.Board`; says nothing where there is no terminal. A context manager."""

    def __init__(self, quiet: bool = False) -> None:
        """Show nothing if `quiet`."""
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(20), TimeElapsedColumn()
        self._bar = Progress(*columns, console=errors, transient=True, disable=quiet or not errors.is_terminal)
        self._all = self._bar.add_task("all drives", total=None)
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> LiveBoard:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._bar.disable:
            self._bar.stop()

    def begin(self, drives: int) -> None:
        """See `Board`."""
        self._bar.update(self._all, total=drives)
        self._bar.start()

    def show(self, drive: str, what: str, share: float | None) -> None:
        """See `Board`."""
        text = f"{drive}: {what}"
        with self._lock:
            if (task := self._tasks.get(drive)) is None:
                task = self._tasks[drive] = self._bar.add_task(text, total=None)
        self._bar.update(task, description=text, total=None if share is None else 1.0, completed=share or 0.0)

    def finish(self, outcome: VerbOutcome) -> None:
        """See `Board`."""
        with self._lock:
            task = self._tasks.pop(outcome.drive, None)
        if task is not None:
            self._bar.remove_task(task)
        self._bar.advance(self._all)
