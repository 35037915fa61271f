"""Calibration tables for tests: sound ones of any size, and a real one's shape."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from csd_emu.profiles.calibration import (
    FORMAT,
    REFERENCE_CORE,
    CalibrationKey,
    CalibrationRow,
    CalibrationTable,
    Versions,
    row_mark,
)
from csd_emu.profiles.calibration.cycle_counts import PhaseCycles, RowCycles, StepCycles
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.measure_frames import LayerTime, LayerTimes
from firmware_agent.common.shipped_code import ShippedCode

IMAGE = "0123456789abcdef"
VERSIONS = Versions(agent="0.1.0", python="3.11.2", torch="2.9.1", numpy="2.3.0", kernel="6.1")
DIGITS = CalibrationKey.of(ShippedCode("digits_cnn"), (1, 8, 8))


def step(seconds: float) -> PhaseSeconds:
    return PhaseSeconds(forward=0.3 * seconds, backward=0.6 * seconds, update=0.1 * seconds)


def make_table(costs: dict[int, float], key: CalibrationKey = DIGITS, **changes: Any) -> CalibrationTable:
    """A table whose step takes ``costs[batch]`` seconds."""
    rows = [
        CalibrationRow(row_mark(key, IMAGE), batch, (step(seconds),) * 3, 250_000_000 + 1000 * batch, 1.5)
        for batch, seconds in costs.items()
    ]
    fields: dict[str, Any] = {
        "format": FORMAT,
        "model": key.model,
        "arguments": dict(key.arguments),
        "source_sha256": key.source_sha256,
        "input_shape": key.input_shape,
        "classes": 10,
        "parameters": 38282,
        "clock": "counted",
        "core": key.core,
        "image": IMAGE,
        "versions": VERSIONS,
        "seed": 0,
        "encode_seconds": (0.001, 0.002),
        "memory_source": "VmHWM",
        "rows": tuple(rows),
    }
    return CalibrationTable(**fields | changes)


@st.composite
def tables(draw: st.DrawFn) -> CalibrationTable:
    """Any table that keeps the rules."""
    batches = sorted(draw(st.sets(st.integers(1, 4096), min_size=2, max_size=6)))
    costs = sorted(draw(st.lists(st.floats(1e-4, 1e3), min_size=len(batches), max_size=len(batches))))
    return make_table(dict(zip(batches, costs, strict=True)))


def with_layers(
    table: CalibrationTable, names: Sequence[str], shares: Mapping[int, Sequence[Sequence[float]]]
) -> CalibrationTable:
    """A table with layers in the rows of these batches alone: ``shares[batch]`` are (forward, backward) of each."""
    rows = [
        msgspec.structs.replace(row, layers=None)
        if row.batch_size not in shares
        else msgspec.structs.replace(row, layers=layer_times(names, row.seconds, shares[row.batch_size]))
        for row in table.rows
    ]
    return msgspec.structs.replace(table, rows=tuple(rows))


def layer_times(names: Sequence[str], step: PhaseSeconds, weights: Sequence[Sequence[float]]) -> LayerTimes:
    """Layers of a step with these (forward, backward) weights; watched, it took a tenth longer."""
    forward, backward = ([each[phase] for each in weights] for phase in (0, 1))
    layers = [
        LayerTime(name, step.forward * f / sum(forward), step.backward * b / sum(backward))
        for name, f, b in zip(names, forward, backward, strict=True)
    ]
    return LayerTimes(layers, PhaseSeconds(forward=1.1 * step.forward, backward=1.1 * step.backward), 3)


__all__ = ["DIGITS", "IMAGE", "REFERENCE_CORE", "layer_times", "make_table", "step", "tables", "with_layers"]


def with_cycles(table: CalibrationTable, ratios: Mapping[str, float], core: str = "0" * 16) -> CalibrationTable:
    """The table with cycles: so many per instruction in each phase, of rows whose steps are alike."""

    def counts(phase: str, seconds: float) -> PhaseCycles:
        instructions = round(seconds * 1e9)
        return PhaseCycles(instructions, round(instructions * ratios[phase]), 64)

    def cycles(row: CalibrationRow) -> RowCycles:
        whole = StepCycles(*(counts(phase, getattr(row.seconds, phase)) for phase in StepCycles.__struct_fields__))
        return RowCycles(core, (whole, whole), (counts("encode", 0.001),))

    rows = tuple(msgspec.structs.replace(row, cycles=cycles(row)) for row in table.rows)
    return msgspec.structs.replace(table, rows=rows)
