"""Reading a calibration table's file, and the rules that it has to keep."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import msgspec

from csd_emu.profiles.calibration.calibration_table import FORMAT, PHASES, CalibrationRow, CalibrationTable
from csd_emu.profiles.calibration.table_key import MODELLED, REFERENCE_CORE
from firmware_agent.common.errors import CalibrationError

MIN_ROWS = 2
# A larger batch may seem cheaper than a smaller one by so much: steps vary, and kernels change with the size.
MONOTONE_TOLERANCE = 0.02
# The layers of a row add up to its step but for rounding.
_LAYER_TOLERANCE = 1e-6
_CLOCKS = ("counted", "wall")
# A dual-issue core takes half a cycle at least; a chain of misses takes some hundreds.
LEAST_CYCLES, MOST_CYCLES = 0.5, 1000.0
_REMEDY = "remove the file, or measure again with csd-emu calibrate"


class _Format(msgspec.Struct):
    """The one field that any version of the format has."""

    format: int


def parse_table(data: bytes, where: str) -> CalibrationTable:
    """Return the table in the JSON text `data`; `where` names its origin in errors.

    Raises:
        CalibrationError: it is damaged, of a newer format, or breaks a rule of `check_table`.
    """
    try:
        if (version := msgspec.json.decode(data, type=_Format).format) > FORMAT:
            raise CalibrationError(f"{where}: format {version}, this csd-emu reads {FORMAT}; upgrade csd-emu")
        table = msgspec.json.decode(data, type=CalibrationTable)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CalibrationError(f"{where}: is no calibration table ({error}); {_REMEDY}") from error
    check_table(table, where)
    return table


def encode_table(table: CalibrationTable) -> bytes:
    """Return the table as indented JSON text."""
    return msgspec.json.format(msgspec.json.encode(table)) + b"\n"


def check_table(table: CalibrationTable, where: str) -> None:
    """Return if the table keeps the rules.

    These are: a model that can be, two rows or more, batches in order, finite seconds, costs that grow, and the clock
    of the core: ``counted`` of a core that was modelled, whose cycles the rows have, ``wall`` of a real drive's.

    Raises:
        CalibrationError: it does not; the message names the row.
    """
    for problem in _problems(table):
        raise CalibrationError(f"{where}: {problem}; {_REMEDY}")


def _broken(rules: Mapping[str, object]) -> list[str]:
    """Return what is said of the rules that are broken: those that `rules` map to something true."""
    return [problem for problem, broken in rules.items() if broken]


def _problems(table: CalibrationTable) -> Iterator[str]:
    yield from _head_problems(table)
    for number, row in enumerate(table.rows, 1):
        other = _broken({"was measured for another model, shape, core or image": row.of != table.row_mark})
        each = itertools.chain(_row_problems(row), _layer_problems(row), _cycle_problems(row), other)
        yield from (f"row {number} (batch {row.batch_size}): {problem}" for problem in each)
    yield from _differences(table)
    for number, (small, large) in enumerate(itertools.pairwise(table.rows), 2):
        where = f"row {number} (batch {large.batch_size})"
        if large.batch_size <= small.batch_size:
            yield f"{where}: comes after batch {small.batch_size}; rows must have increasing batch sizes"
        before, after = small.seconds.total, large.seconds.total
        if after < before * (1 - MONOTONE_TOLERANCE):
            yield (
                f"{where}: a step takes {after:.6g} s, less than the {before:.6g} s of batch {small.batch_size}; "
                f"more than {MONOTONE_TOLERANCE:.0%} is no noise, so one of them is wrong"
            )


def _differences(table: CalibrationTable) -> list[str]:
    cores = {row.cycles.core if row.cycles is not None else "" for row in table.rows}
    return _broken(
        {
            f"the cycles of its rows are not those of {table.core}": (
                table.core.startswith(MODELLED) and cores != {table.core.removeprefix(MODELLED)}
            ),
            "the cycles of its rows were counted with different core parameters": len(cores - {""}) > 1,
            "its rows have layers of different names; one model has the same at any batch size": (
                len({tuple(_names(row)) for row in table.rows if row.layers is not None}) > 1
            ),
        }
    )


def _head_problems(table: CalibrationTable) -> list[str]:
    counted = table.core == REFERENCE_CORE or table.core.startswith(MODELLED)
    return _broken(
        {
            f"format {table.format}, this csd-emu reads {FORMAT}": table.format != FORMAT,
            f"input shape {table.input_shape} with {table.classes} classes is no model's": (
                min(table.input_shape, default=1) < 1 or table.classes < 1
            ),
            f"{table.parameters} parameters are no model's that trains": table.parameters < 1,
            f"clock {table.clock!r} is none of {', '.join(_CLOCKS)}": table.clock not in _CLOCKS,
            f"the clock is {table.clock} and the core {table.core}; {REFERENCE_CORE} and {MODELLED}DIGEST are counted, "
            "any other wall": table.clock in _CLOCKS and (table.clock == "counted") != counted,
            f"has {len(table.rows)} rows, a table needs {MIN_ROWS} batch sizes or more": len(table.rows) < MIN_ROWS,
            f"encode_seconds {list(table.encode_seconds)} must be finite numbers of 0 or more": (
                not table.encode_seconds or not all(map(_sound, table.encode_seconds))
            ),
        }
    )


def _row_problems(row: CalibrationRow) -> list[str]:
    phases = [(number, phase, getattr(step, phase)) for number, step in enumerate(row.steps, 1) for phase in PHASES]
    return _broken(
        {
            "a batch has one sample or more": row.batch_size < 1,
            "has no steps": not row.steps,
            **{
                f"step {number}: {phase} is {seconds} s, which no step takes": not _sound(seconds)
                for number, phase, seconds in phases
            },
            "its steps take no time": row.steps and row.seconds.total == 0,
            f"peak memory of {row.peak_memory_bytes} bytes": row.peak_memory_bytes < 1,
            f"wall_seconds is {row.wall_seconds}": not _sound(row.wall_seconds),
        }
    )


def _cycle_problems(row: CalibrationRow) -> list[str]:
    if row.cycles is None:
        return []
    if not row.cycles.steps or not row.cycles.encodes:
        return ["its cycles are of no step, or of no encoding"]
    return [
        f"{phase} takes {ratio:.3g} cycles per instruction; {LEAST_CYCLES} to {MOST_CYCLES} are possible"
        for phase, ratio in row.cycles.per_instruction().items()
        if not LEAST_CYCLES <= ratio <= MOST_CYCLES
    ]


def _layer_problems(row: CalibrationRow) -> Iterator[str]:
    if row.layers is None or not row.steps:
        return
    if len(set(_names(row))) < len(row.layers.layers):
        yield f"two of its layers have one name: {', '.join(_names(row))}"
    for phase in ("forward", "backward"):
        step = getattr(row.seconds, phase)
        layers = sum(getattr(layer, f"{phase}_seconds") for layer in row.layers.layers)
        if not abs(layers - step) <= _LAYER_TOLERANCE * step:
            yield f"its layers take {layers:.6g} s {phase}, its median step {step:.6g} s; they must add up to it"


def _names(row: CalibrationRow) -> list[str]:
    return [] if row.layers is None else [layer.name for layer in row.layers.layers]


def _sound(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0
