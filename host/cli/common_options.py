"""Options that several commands share, and candidates of the shell's completion: names that are cheap to find."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from csd_emu.config.engine_names import ENGINE, Clock
from csd_emu.util.paths import Paths
from host.config.plugins.kinds import SPLIT_POLICY, TRANSFER_TUNER, TUNER

if TYPE_CHECKING:
    EngineName = str
    TunerName = str
    ScheduleName = str
else:
    # Their built-in names, as Typer takes a choice.
    EngineName, TunerName, ScheduleName = (Literal[tuple(each.offered)] for each in (ENGINE, TUNER, TRANSFER_TUNER))

JobFile = Annotated[Path, typer.Argument(metavar="JOB.YAML", help="what to train")]
ArrayFile = Annotated[Path, typer.Argument(metavar="ARRAY.YAML", help="which drives")]
ArrayOption = Annotated[Path, typer.Option("--array", metavar="ARRAY.YAML", help="which drives")]
ArrayOrDefault = Annotated[
    Path | None, typer.Option("--array", metavar="ARRAY.YAML", help="which drives; else array.yaml beside the job")
]
EngineOption = Annotated[EngineName | None, typer.Option("--engine", help="in place of the array file's")]
ClockOption = Annotated[Clock | None, typer.Option("--clock", help="in place of the array file's")]
TunerOption = Annotated[TunerName | None, typer.Option("--tuner", help="in place of the job file's")]
CommunicationOption = Annotated[
    ScheduleName | None, typer.Option("--comm", help="the schedule, in place of the job file's communication")
]
PlacementOption = Annotated[
    str | None,
    typer.Option(
        "--placement",
        metavar="|".join([*SPLIT_POLICY.offered, "LAYER"]),
        help="which layers the host has, in place of the job file's",
    ),
]
PreferOption = Annotated[
    str | None,
    typer.Option(
        "--prefer",
        metavar="time|power|energy|edp|WEIGHTS",
        help="have the devices that train chosen, for this; weights are such as time=2,energy=1",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="in place of the job file's key, with dots for sections: sync.precision=fp16; can be repeated",
        autocompletion=lambda incomplete: complete_key(incomplete),
    ),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="of everything random, in place of the job file's")]
NameOption = Annotated[str | None, typer.Option("--name", help="of the run and its directory; else the job file's")]
DrivesOption = Annotated[
    int | None, typer.Option("--drives", min=1, help="so many drives of one profile, in place of the array file's")
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="of these drives; newport if their number is given alone",
        autocompletion=lambda incomplete: complete_profile(incomplete),
    ),
]
JobOption = Annotated[Path | None, typer.Option("--job", metavar="JOB.YAML", help="the job whose data the drives hold")]
Stay = Annotated[bool, typer.Option("--stay", help="stay in the foreground until Ctrl-C, which is the normal end")]
Trust = Annotated[bool, typer.Option("--trust", help="use a run directory that belongs to another user")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object, for scripts")]


def complete_array(incomplete: str) -> list[str]:
    """Return names of arrays that are up, or have left something."""
    return list_beginning(incomplete, (path.name for path in Paths.default().arrays.glob("*/")))


def complete_key(incomplete: str) -> list[str]:
    """Return keys of a job file, with those of its sections."""
    from csd_emu.util.config_files import list_keys
    from host.config.job_file import JobConfig

    return list_beginning(incomplete, (f"{key}=" for key in dict.fromkeys(list_keys(JobConfig))))


def complete_profile(incomplete: str) -> list[str]:
    """Return names of profiles, built in and the user's."""
    from csd_emu.profiles import PROFILES

    return list_beginning(incomplete, [*PROFILES, *(path.stem for path in Paths.default().profiles.glob("*.yaml"))])


def complete_run(incomplete: str) -> list[str]:
    """Return names of runs in the usual folder."""
    from host.monitoring.runs.run_listing import list_runs

    return list_beginning(incomplete, {row.name for row in list_runs(Path("runs")).runs})


def complete_fault(incomplete: str) -> list[str]:
    """Return the faults that can be injected."""
    from csd_emu.engines.engine_protocol import Fault

    return list_beginning(incomplete, Fault)


def complete_example(incomplete: str) -> list[str]:
    """Return names of examples."""
    from host.cli.shipped_examples import list_examples

    with contextlib.suppress(OSError):
        return list_beginning(incomplete, list_examples())
    return []


def complete_schema(incomplete: str) -> list[str]:
    """Return names of schemas."""
    from host.cli.schemas import list_schemas

    return list_beginning(incomplete, list_schemas())


def list_beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return those of the names that begin with what is typed already, in order."""
    return sorted(name for name in names if name.startswith(incomplete))
