"""The array of emulated computational storage drives: start it, train on it, measure it."""

from __future__ import annotations

import errno
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from csd_emu.paths import Paths
from firmware_agent.errors import CsdError, EnvironmentUnfit
from host import printing
from host.commands.calibrate import calibrate
from host.console import StageProgress, errors
from host.interrupts import INTERRUPTS
from host.outputs import print_json

INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT)


class EngineName(StrEnum):
    """The engines that a command can be told to use."""

    qemu = "qemu"
    native = "native"


JobFile = Annotated[Path, typer.Argument(metavar="JOB.YAML", help="what to train")]
ArrayFile = Annotated[Path, typer.Argument(metavar="ARRAY.YAML", help="which drives")]
ArrayOption = Annotated[Path, typer.Option("--array", metavar="ARRAY.YAML", help="which drives")]
EngineOption = Annotated[EngineName | None, typer.Option("--engine", help="in place of the array file's")]
JobOption = Annotated[Path | None, typer.Option("--job", metavar="JOB.YAML", help="the job whose data the drives hold")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object, for scripts")]

# Commands import what they need themselves, for a quick --help; in `deferred`, because an interrupted import can leave
# numpy or torch in pieces, which end in a traceback.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, help=__doc__)
image_app = typer.Typer(no_args_is_help=True, help="The ARM image that every emulated drive boots.")
app.add_typer(image_app, name="image")
app.command()(calibrate)


def main() -> None:
    """Run the command line; an error of ours becomes one message and its exit code, Ctrl-C becomes 130."""
    try:
        with INTERRUPTS.installed():
            app()
    except CsdError as error:
        errors.print(f"csd-emu: {error}", style="red", markup=False)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in FULL:
            raise
        errors.print(f"csd-emu: {error}; free some disk space", style="red", markup=False)
        sys.exit(EnvironmentUnfit.exit_code)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            errors.print("csd-emu: interrupted; what this command started has ended")
        raise


@app.command()
def run(
    job: JobFile,
    array: ArrayOption,
    engine: EngineOption = None,
    runs: Annotated[Path, typer.Option(help="folder for run directories")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Train a job on an array; unless the array is up, start it first and end it afterwards."""
    with INTERRUPTS.deferred():
        from host.requests import read_run
        from host.run import run_job

        request = read_run(job, array, engine and engine.value)
    with StageProgress(quiet=as_json) as progress:
        summary = run_job(request, Paths.default(), runs, progress, quiet=as_json)
    print_json(summary) if as_json else printing.print_summary(summary)
    raise typer.Exit(0 if summary.reached else 1)


@app.command()
def up(array: ArrayFile, job: JobOption = None, engine: EngineOption = None, as_json: Json = False) -> None:
    """Start an array that stays up, with the data of a job (the quickstart's, if none is given)."""
    with INTERRUPTS.deferred():
        from host.arrays import bring_up
        from host.outputs import StatusReport
        from host.requests import read_up

        request = read_up(array, job, engine and engine.value)
    with StageProgress(quiet=as_json) as progress:
        status = bring_up(request, Paths.default(), progress)
    print_json(status) if as_json else printing.print_status(StatusReport([status]))


@app.command()
def down(name: Annotated[str, typer.Argument(help="name of the array")], as_json: Json = False) -> None:
    """End an array that is up."""
    with INTERRUPTS.deferred():
        from host.arrays import take_down

    report = take_down(name, Paths.default())
    print_json(report) if as_json else printing.print_sweep(report)


@app.command()
def status(as_json: Json = False) -> None:
    """Show the arrays that are up."""
    with INTERRUPTS.deferred():
        from host.arrays import report_status

    report = report_status(Paths.default())
    print_json(report) if as_json else printing.print_status(report)


@app.command()
def sweep(
    names: Annotated[list[str] | None, typer.Argument(help="arrays; all of this user if none is given")] = None,
    as_json: Json = False,
) -> None:
    """End all that is left of arrays, with or without a state file."""
    with INTERRUPTS.deferred():
        from host.arrays import sweep as sweep_arrays

    report = sweep_arrays(names or [], Paths.default())
    print_json(report) if as_json else printing.print_sweep(report)


@app.command()
def validate(
    array: ArrayFile,
    job: JobOption = None,
    engine: EngineOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="also print the domain XML of each drive")] = False,
    as_json: Json = False,
) -> None:
    """Check an array file, and a job if given, without starting anything."""
    with INTERRUPTS.deferred():
        from host.validation import validate_files

    report = validate_files(array, job, engine and engine.value, dry_run, Paths.default())
    print_json(report) if as_json else printing.print_validation(report)


@image_app.command("build")
def image_build(
    rebuild: Annotated[bool, typer.Option("--rebuild", help="build anew even if there is one")] = False,
    as_json: Json = False,
) -> None:
    """Build the image of this version; needs no root, and is checked by one boot."""
    from host.images import build_image

    with StageProgress(quiet=as_json) as progress:
        report = build_image(Paths.default(), progress, rebuild)
    print_json(report) if as_json else printing.print_images(report)


@image_app.command("list")
def image_list(as_json: Json = False) -> None:
    """List the images in the cache."""
    from host.images import list_images

    report = list_images(Paths.default())
    print_json(report) if as_json else printing.print_images(report)


@image_app.command("prune")
def image_prune(as_json: Json = False) -> None:
    """Remove all images and templates but those of this version."""
    from host.images import prune_images

    report = prune_images(Paths.default())
    print_json(report) if as_json else printing.print_images(report)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="repeatability, startup, slowdown, memory, image or calibration")],
    seed: Annotated[int, typer.Option(help="of everything random", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Measure one of the project's promises."""
    with INTERRUPTS.deferred():
        from host.bench import run_bench

    with StageProgress(quiet=as_json) as progress:
        report = run_bench(name, Paths.default(), progress, seed)
    print_json(report) if as_json else printing.print_bench(report)
