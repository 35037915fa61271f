"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class EngineName(StrEnum):
    """The engines that a command can be told to use."""

    qemu = "qemu"
    native = "native"


class TunerChoice(StrEnum):
    """The tuners that a command can be told to use."""

    none = "none"
    stannis = "stannis"
    hypertune = "hypertune"


class CommunicationChoice(StrEnum):
    """How a command can be told to send the tensors of a synchronous step."""

    fifo = "fifo"
    priority = "priority"
    search = "search"
    autobyte = "autobyte"


JobFile = Annotated[Path, typer.Argument(metavar="JOB.YAML", help="what to train")]
ArrayFile = Annotated[Path, typer.Argument(metavar="ARRAY.YAML", help="which drives")]
ArrayOption = Annotated[Path, typer.Option("--array", metavar="ARRAY.YAML", help="which drives")]
EngineOption = Annotated[EngineName | None, typer.Option("--engine", help="in place of the array file's")]
TunerOption = Annotated[TunerChoice | None, typer.Option("--tuner", help="in place of the job file's")]
CommunicationOption = Annotated[
    CommunicationChoice | None, typer.Option("--comm", help="the schedule, in place of the job file's communication")
]
PlacementOption = Annotated[
    str | None,
    typer.Option(
        "--placement", metavar="none|auto|LAYER", help="which layers the host has, in place of the job file's"
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
JobOption = Annotated[Path | None, typer.Option("--job", metavar="JOB.YAML", help="the job whose data the drives hold")]
Stay = Annotated[bool, typer.Option("--stay", help="stay in the foreground until Ctrl-C, which is the normal end")]
Trust = Annotated[bool, typer.Option("--trust", help="use a run directory that belongs to another user")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object, for scripts")]
