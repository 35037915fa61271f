"""`csd-emu run`, `csd-emu ci run`, and `csd-emu store`, in which the servers of one run find each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from csd_emu.config.engine_names import ArrayChanges
from csd_emu.config.servers_file import read_servers
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.app.gate.gate_checks import REMEDIES, GateReport, Verdict, format_tolerance, list_changes, parse_bands
from host.cli.common_options import (
    ArrayOption,
    ArrayOrDefault,
    ClockOption,
    CommunicationOption,
    DrivesOption,
    EngineOption,
    JobFile,
    Json,
    NameOption,
    PlacementOption,
    PreferOption,
    ProfileOption,
    SeedOption,
    SetOption,
    Stay,
    Trust,
    TunerOption,
)
from host.config.array_files import find_array
from host.config.overrides import NO_KEYS, chosen_keys
from host.core.console import StageProgress, console, print_json, print_summary
from host.core.interrupts import INTERRUPTS
from host.core.summary import Summary, format_accuracy

if TYPE_CHECKING:
    from host.app.prepare import RunRequest


JobArgument = Annotated[Path | None, typer.Argument(metavar="JOB.YAML", help="what to train")]
ServersOption = Annotated[
    Path | None,
    typer.Option("--servers", metavar="SERVERS.YAML", help="servers that train together, in place of --array"),
]
ServerOption = Annotated[str | None, typer.Option("--server", metavar="NAME", help="which of them this is")]
CalibrateOption = Annotated[
    bool, typer.Option("--calibrate", help="native drives: measure first what the model's steps cost, if no table does")
]
ResumeOption = Annotated[
    Path | None, typer.Option("--resume", metavar="DIR", help="go on with the run in this directory instead")
]


def run(
    job: JobArgument = None,
    array: ArrayOrDefault = None,
    drives: DrivesOption = None,
    profile: ProfileOption = None,
    engine: EngineOption = None,
    clock: ClockOption = None,
    sets: SetOption = None,
    seed: SeedOption = None,
    name: NameOption = None,
    tuner: TunerOption = None,
    comm: CommunicationOption = None,
    placement: PlacementOption = None,
    prefer: PreferOption = None,
    servers: ServersOption = None,
    server: ServerOption = None,
    calibrate: CalibrateOption = False,
    runs: Annotated[Path, typer.Option(help="folder for run directories")] = Path("runs"),
    resume: ResumeOption = None,
    trust: Trust = False,
    stay: Stay = False,
    open_page: Annotated[bool, typer.Option("--open", help="open the live page in a browser")] = False,
    as_json: Json = False,
) -> None:
    """Train a job on an array; unless the array is up, start it first and end it afterwards."""
    shown: list[Summary] = []
    options = {"tuner": tuner, "placement": placement, "planner.prefer": prefer, "seed": seed, "name": name}
    with contextlib.ExitStack() as stack:
        if resume is not None:
            files, changed = (job, array, servers, server), (drives, profile, clock, comm, *options.values())
            _check_resumed(*files, *changed, sets or None, calibrate or None, open_page or None)
        else:
            changes, keys = ArrayChanges(engine, clock, drives, profile), chosen_keys(sets, options)
            request = stack.enter_context(
                _prepared(job, array, servers, server, changes, keys, comm, calibrate, as_json)
            )
        with INTERRUPTS.deferred():
            from host.app import run_job as runner
            from host.app.resume import resume_run

        progress = stack.enter_context(StageProgress(quiet=as_json))
        staying = runner.Stay(partial(_show, as_json=as_json, stayed=shown)) if stay else None
        if resume is not None:
            summary = resume_run(resume, engine, Paths.default(), progress, as_json, staying, trust)
        else:
            where = runner.NewRun(runs, lambda _, page: open_page and typer.launch(page))
            summary = runner.run_job(request, Paths.default(), where, progress, quiet=as_json, stay=staying)
    if not shown:  # a run that had finished before does not stay
        _show(summary, as_json)
    raise typer.Exit(0 if summary.reached else 1)


def _show(summary: Summary, as_json: bool, stayed: list[Summary] | None = None) -> None:
    """Print how a run ended; of one that stays it is kept in `stayed`."""
    print_json(summary) if as_json else print_summary(summary)
    if stayed is not None:
        stayed.append(summary)
        if not as_json:
            console.print("drives, metrics and live page stay until Ctrl-C")


def _check_resumed(*given: object) -> None:
    """Refuse what a run that is resumed takes from its directory."""
    if any(each is not None for each in given):
        raise ConfigurationError(
            "--resume takes job and array from DIR; of the options --engine, --trust, --stay and --json alone go with "
            "it: leave the others, and JOB.YAML, out"
        )


@contextlib.contextmanager
def _prepared(
    job: Path | None,
    array: Path | None,
    servers: Path | None,
    server: str | None,
    array_changes: ArrayChanges,
    keys: Mapping[str, Any] = NO_KEYS,
    comm: str | None = None,
    calibrate: bool = False,
    quiet: bool = False,
) -> Iterator[RunRequest]:
    """Read and check what the files of a new run ask for, while the launcher of its native drives imports.

    Raises:
        ConfigurationError: one is missing, too many are named, or one breaks a rule.
    """
    if (servers is None) != (server is None):
        raise ConfigurationError("--servers SERVERS.YAML and --server NAME are given together: which of them is this?")
    if job is None or (array is not None and servers is not None):
        raise ConfigurationError(
            "give JOB.YAML and --array ARRAY.YAML (or --servers SERVERS.YAML and --server NAME), or --resume DIR"
        )
    if servers is None:
        array = find_array(job, array, array_changes)
    elif "devices" in array_changes.keys or calibrate:
        raise ConfigurationError(
            "--servers says which drives each server has, and all go by the same tables: leave --drives, --profile and "
            "--calibrate out; csd-emu calibrate measures a table, to be copied to all"
        )
    with INTERRUPTS.deferred():
        from csd_emu.engines.native_engine import launched_ahead
        from host.config.resolve import JobChanges, read_drives, resolve_job

        drives = read_drives(array, None if servers is None or server is None else (servers, server), array_changes)
    with launched_ahead(drives[1], Paths.default()):
        with INTERRUPTS.deferred():
            from host.app.prepare import prepare_run

            resolved = resolve_job(job, drives, JobChanges(keys, comm))
        if calibrate or (servers is None and drives[1].calibrate == "auto"):
            with INTERRUPTS.deferred():
                from host.app.missing_table import measure_missing

            with StageProgress(quiet=quiet) as progress:
                measure_missing(resolved, Paths.default(), progress)
        with INTERRUPTS.deferred():
            request = prepare_run(resolved)
        yield request


def store(
    servers: Annotated[Path, typer.Argument(metavar="SERVERS.YAML", help="which servers find each other here")],
    targets: Annotated[
        Path | None,
        typer.Option("--targets", metavar="FILE", help="keep the list of their exporters there, for Prometheus"),
    ] = None,
) -> None:
    """Keep the store in which servers that train together find each other, until Ctrl-C, which is the normal end."""
    config = read_servers(servers)
    with INTERRUPTS.deferred():
        from host.training.multi_server.prometheus_targets import keep_targets
        from host.training.multi_server.store.store_server import kept_store

    with kept_store(config.store) as kept:
        console.print(
            f"store of {config.name}: {config.store.address}:{config.store.port}, key {config.store.key}, until Ctrl-C",
        )
        keeping = [] if targets is None else [keep_targets(kept, config, targets, partial(console.print, markup=False))]
        INTERRUPTS.run(INTERRUPTS.wait(*keeping))


ci_app = typer.Typer(no_args_is_help=True, help="Gates for continuous integration.")


@ci_app.callback()
def ci() -> None:
    """Keep `run` a command of its own, though it is the only one."""


@ci_app.command("run")
def ci_run(
    job: JobFile,
    array: ArrayOption,
    baseline: Annotated[Path, typer.Option(metavar="BASE.JSON", help="the file to compare with")],
    junit: Annotated[Path | None, typer.Option(metavar="OUT.XML", help="write the verdicts as JUnit XML")] = None,
    band: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE=SHARE",
            help="of accuracy, records_per_device_second or joules_per_record; 1% if neither this nor the baseline "
            "says otherwise, 'none' leaves it out; can be repeated",
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write-baseline", help="make the baseline of this run")] = False,
    update: Annotated[bool, typer.Option("--update-baseline", help="the same, in place of one that is there")] = False,
    allow_losses: Annotated[
        bool, typer.Option("--allow-losses", help="a drive that is lost does not fail the gate: the job is about that")
    ] = False,
    engine: EngineOption = None,
    clock: ClockOption = None,
    runs: Annotated[Path, typer.Option(help="folder for run directories")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Run a job and fail if accuracy, records per device second or joules per record leave their band."""
    from host.app.gate.junit import remove_old, saying_errors

    if junit is not None:
        remove_old(junit)
    with saying_errors(junit, "csd-emu", {}):
        if write and update:
            raise ConfigurationError("give --write-baseline or --update-baseline, not both")
        bands = parse_bands(band or [])
        with _prepared(job, array, None, None, ArrayChanges(engine, clock)) as request:
            with INTERRUPTS.deferred():
                from host.app.gate.run_gate import Gate, run_gate

            gate = Gate(baseline, junit, bands, write or update, update, allow_losses)
            with StageProgress(quiet=as_json) as progress:
                report = run_gate(request, gate, Paths.default(), runs, progress, quiet=as_json)
    print_json(report) if as_json else print_gate(report)
    raise typer.Exit(0 if report.passed else 1)


def print_gate(report: GateReport) -> None:
    """Print every figure with its band, and of what fails why and what to do."""
    table = Table("figure", "expected", "measured", "change", "band", "clock", "verdict")
    for row in report.figures:
        measured = "no number" if row.measured is None else f"{row.measured:.6g} {row.unit}"
        change = "" if row.change is None else f"{row.change:+.3%}"
        colour = "green" if row.verdict is Verdict.WITHIN else "red"
        verdict = f"[{colour}]{row.verdict}[/]"
        table.add_row(
            row.figure, f"{row.expected:.6g}", measured, change, format_tolerance(row.band), row.clock, verdict
        )
    console.print(table)
    failing = [row for row in report.figures if row.verdict is not Verdict.WITHIN]
    lines = [
        *(f"{row.figure} is {row.verdict}: {REMEDIES[row.verdict]}" for row in failing),
        *([list_changes(report.changed)] if failing else []),
        *(f"failed: {failure}" for failure in report.failures),
        *report.notes,
    ]
    for line in lines:
        console.print(line, markup=False)
    if (summary := report.summary).target_accuracy is not None and not summary.reached:
        console.print(
            f"accuracy {format_accuracy(summary.accuracy)}: the job's target {summary.target_accuracy} was missed"
        )
    verdict = "written" if report.written else "passed" if report.passed else "failed"
    console.print(f"baseline {report.baseline}: {verdict}; run directory: {summary.run_directory}")
