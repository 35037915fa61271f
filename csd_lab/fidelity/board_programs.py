"""The programs that are measured on a board: which it can run, their files, and what they write. Nothing runs here."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

import firmware_agent
from csd_emu.cycles.parameters import RANGES
from csd_lab.fidelity.bare_machine import compile_guest
from csd_lab.fidelity.benchmark_programs import (
    COREMARK_ARGUMENTS,
    LEAST_KIBIBYTES,
    LOOPS,
    LOOPS_SOURCE,
    RANDOM_READ,
    guest_file,
    loop_constants,
    ncnn_files,
    read_program,
)
from csd_lab.fidelity.board_facts import BoardFacts, is_older
from host.app.calibration_measurement import LEARNING_RATE, MOMENTUM
from host.config.calibration_request import CalibrationRequest
from host.core.table_plan import MAX_STEPS, MEASURE_SECONDS

# Random reads go up to so much memory, as tinymembench's at most of the published boards.
MOST_KIBIBYTES = 32768
# Additions that tell the clock, their mark, and what no core's clock is.
ADDITIONS, _CLOCK, _MEGAHERTZ = 4_000_000, 5, RANGES["clock_megahertz"]
# Wall seconds of one repetition at most. CoreMark chooses its iterations for ten seconds or more by itself.
_LOOP_SECONDS, _COREMARK_SECONDS, _NETWORK_SECONDS, _STEP_SECONDS = 60.0, 120.0, 120.0, 600.0
# Networks that need more memory than small boards have, zeros that their weights are.
_LARGE_NETWORKS = {"vgg16": 1500 << 20}
_RATE = re.compile(r"Iterations/Sec\s*:\s*(\d{1,9}(?:\.\d{1,9})?)")
_NETWORK = re.compile(r"([A-Za-z0-9_.-]{1,40}) (\d{1,14})")
_MOST_STEPS = 4096
LOOPS_PROGRAM, COREMARK_PROGRAM, NETWORK_PROGRAM, STEP_PROGRAM = (
    "memory loops",
    "CoreMark",
    "networks",
    "training steps",
)

Read = Callable[[str], dict[str, float]]
"""Returns the figures in what a repetition wrote; raises `ValueError` if it is no such program's."""


@dataclass(frozen=True)
class BoardProgram:
    """One program.

    Attributes:
        name: for people.
        command: of a shell, in the folder of the files.
        seconds: wall time of one repetition at most.
        read: what it wrote.
        files: relative path -> content.
    """

    name: str
    command: str
    seconds: float
    read: Read
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class WantedPrograms:
    """What the user wants to run on a board, beside the loops over memory.

    Attributes:
        coremark: CoreMark, behind its loader if it has one; empty for none.
        ncnn: folder of networks and packages; None for none.
        networks: name -> width, height and channels of the input.
        release: of ncnn.
        training: model and batch sizes; None if there is no table to compare them with.
        torch: release that the table was counted with.
    """

    coremark: Sequence[Path]
    ncnn: Path | None
    networks: Mapping[str, tuple[int, int, int]]
    release: str
    training: CalibrationRequest | None
    torch: str


def choose_programs(facts: BoardFacts, wanted: WantedPrograms) -> tuple[list[BoardProgram], list[str]]:
    """Return the programs that a board can run, and a line about each thing that it cannot.

    Raises:
        ConfigurationError: a program that the user named cannot be read.
        EnvironmentUnfit: there is no compiler for ARM.
        CalibrationError: the loops over memory do not compile.
    """
    macros = loop_constants(MOST_KIBIBYTES) | {"ON_LINUX": 1, "ADDITIONS": ADDITIONS}
    files = {"memory_loops": compile_guest(LOOPS_SOURCE, macros)}
    programs = [BoardProgram(LOOPS_PROGRAM, "./memory_loops", _LOOP_SECONDS, read_loops, files)]
    notes: list[str] = []
    if wanted.coremark:
        programs.append(_coremark(wanted.coremark))
    if wanted.ncnn is not None:
        programs += _networks(facts, wanted, wanted.ncnn, notes)
    if wanted.training is not None:
        programs += _training(facts, wanted.training, wanted.torch, notes)
    return programs, notes


def _coremark(paths: Sequence[Path]) -> BoardProgram:
    files = {f"coremark-{number}": read_program(path) for number, path in enumerate(paths)}
    command = f"{' '.join(f'./{name}' for name in files)} {COREMARK_ARGUMENTS.format(iterations=0)}"
    return BoardProgram(COREMARK_PROGRAM, command, _COREMARK_SECONDS, read_coremark, files)


def _networks(facts: BoardFacts, wanted: WantedPrograms, ncnn: Path, notes: list[str]) -> list[BoardProgram]:
    if not facts.python:
        notes.append("networks are not measured: it has no python3, which runs ncnn")
        return []
    memory = facts.memory_bytes or 0
    large = [name for name, least in _LARGE_NETWORKS.items() if name in wanted.networks and memory < least]
    notes += [f"{name} is not measured: it needs more memory than the board is known to have" for name in large]
    networks = {name: shape for name, shape in wanted.networks.items() if name not in large}
    sizes = "".join(f"{name} {' '.join(map(str, shape))}\n" for name, shape in networks.items())
    files = ncnn_files(networks, ncnn, wanted.release, facts.python)
    files |= {"networks.txt": sizes.encode(), "ncnn_networks.py": guest_file("ncnn_networks.py")}
    command = "env PYTHONPATH=site python3 ncnn_networks.py --wall"
    return [
        BoardProgram(
            NETWORK_PROGRAM, command, _NETWORK_SECONDS * len(networks), partial(read_networks, networks), files
        )
    ]


def _training(facts: BoardFacts, request: CalibrationRequest, torch: str, notes: list[str]) -> list[BoardProgram]:
    if not facts.torch:
        notes.append(f"training steps are not measured: its python3 cannot run the agent ({facts.torch_problem})")
        return []
    if is_older(facts.torch, torch):
        notes.append(f"training steps are not measured: its torch is {facts.torch}, that of the table {torch}")
        return []
    folder = Path(firmware_agent.__file__).parent
    files = {
        f"firmware_agent/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in folder.rglob("*.py")
    }
    files["training_steps.py"] = guest_file("training_steps.py")
    command = f"python3 training_steps.py '{_task(request)}'"
    return [BoardProgram(STEP_PROGRAM, command, _STEP_SECONDS, partial(read_steps, request.batches), files)]


def _task(request: CalibrationRequest) -> str:
    """Return what `guest/training_steps.py` is called with: JSON without quotes of a shell."""
    job = {
        "model": request.spec.name,
        "arguments": {},
        "input_scale": 1 / 255,
        "seed": request.seed,
        "learning_rate": LEARNING_RATE,
        "momentum": MOMENTUM,
        "batch_size": request.batches[0],
    }
    task = {"job": job, "shape": request.input_shape, "classes": request.facts.classes, "batches": request.batches}
    return json.dumps(task | {"seconds": MEASURE_SECONDS, "steps": MAX_STEPS})


def read_name(kibibytes: int) -> str:
    """Return the name of random reads in so much memory."""
    return f"read in {kibibytes} KiB"


def read_loops(output: str) -> dict[str, float]:
    """Return the nanoseconds of the loops over memory by name, and of the additions as ``clock``.

    Raises:
        ValueError: it is not what they write.
    """
    words = [line.split() for line in output.splitlines() if line]
    loops = [(int(mark), _positive(nanoseconds)) for mark, nanoseconds in words]
    count = (MOST_KIBIBYTES // LEAST_KIBIBYTES).bit_length()
    sizes = [LEAST_KIBIBYTES << number for number in range(count)]
    if [mark for mark, _ in loops] != [_CLOCK, *LOOPS, *[RANDOM_READ] * len(sizes)]:
        raise ValueError("other marks than those of the loops")
    names = ["clock", *LOOPS.values(), *map(read_name, sizes)]
    figures = dict(zip(names, (nanoseconds for _, nanoseconds in loops), strict=True))
    if not _MEGAHERTZ[0] <= ADDITIONS / figures["clock"] * 1000 <= _MEGAHERTZ[1]:
        raise ValueError(f"{ADDITIONS} additions in {figures['clock']:.0f} ns, which no core takes")
    return figures


def read_coremark(output: str) -> dict[str, float]:
    """Return the iterations per second that CoreMark found.

    Raises:
        ValueError: it is no CoreMark, or computed wrongly.
    """
    rate = _RATE.search(output)
    if rate is None or "Correct operation validated" not in output:
        raise ValueError("it is no CoreMark, or computed wrongly")
    return {COREMARK_PROGRAM: _positive(rate[1])}


def read_networks(names: Collection[str], output: str) -> dict[str, float]:
    """Return the nanoseconds of each network.

    Raises:
        ValueError: there are others, or one is missing.
    """
    found = [match for line in output.splitlines() if (match := _NETWORK.fullmatch(line))]
    if [match[1] for match in found] != list(names):
        raise ValueError("other networks than those that were to run")
    return {match[1]: _positive(match[2]) for match in found}


def read_steps(batches: Sequence[int], output: str) -> dict[str, float]:
    """Return batch size -> seconds of the median step.

    Raises:
        ValueError: there are others, or one is missing.
    """
    figures = {}
    for line in output.splitlines():
        row = msgspec.json.decode(line, type=_StepRow)
        if not 0 < len(row.seconds) <= _MOST_STEPS:
            raise ValueError(f"{len(row.seconds)} steps")
        figures[str(row.batch)] = _positive(statistics.median(row.seconds))
    if list(figures) != list(map(str, batches)):
        raise ValueError("other batch sizes than those that were to run")
    return figures


class _StepRow(msgspec.Struct, forbid_unknown_fields=True):
    batch: int
    seconds: list[float]


def _positive(value: str | float) -> float:
    number = float(value)
    if not 0 < number < 1e15:
        raise ValueError(f"a figure of {number:g}")
    return number
