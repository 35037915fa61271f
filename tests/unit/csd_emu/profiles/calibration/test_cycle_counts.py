from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles.calibration import CalibrationKey, CalibrationStore
from csd_emu.profiles.calibration.cycle_counts import PhaseCycles, StepCycles, split_steps
from csd_emu.profiles.calibration.table_check import check_table, encode_table, parse_table
from firmware_agent.common.errors import CalibrationError
from firmware_agent.common.shipped_code import ShippedCode
from tests.support.calibration import make_table, with_cycles

SPEC, SHAPE = ShippedCode("digits_cnn"), (1, 8, 8)
COSTS = {2: 0.01, 8: 0.03}
RATIOS = {"forward": 1.5, "backward": 2.0, "update": 3.5, "encode": 2.5}
COUNTS = st.builds(PhaseCycles, *[st.integers(1, 10**9)] * 3)
STEPS = st.lists(st.builds(StepCycles, COUNTS, COUNTS, COUNTS), min_size=2, max_size=5)


def phases_of(steps: list[StepCycles]) -> list[tuple[str, PhaseCycles]]:
    return [(name, getattr(step, name)) for step in steps for name in StepCycles.__struct_fields__]


@given(STEPS, COUNTS)
def test_the_first_step_warms_up_and_the_others_come_back(steps: list[StepCycles], encode: PhaseCycles) -> None:
    assert split_steps([*phases_of(steps), ("encode", encode)]) == (tuple(steps[1:]), (encode,))


@given(STEPS)
def test_phases_in_parts_are_added_up(steps: list[StepCycles]) -> None:
    parts = [(name, counts) for pair in phases_of(steps) for name, counts in (pair, pair)]
    parts = [part for place, part in enumerate(parts) if part[0] != "update" or place % 2]
    first = split_steps([*parts, ("encode", PhaseCycles())])[0][0]
    assert first.forward == steps[1].forward + steps[1].forward


@pytest.mark.parametrize("left_out", ["a step", "the encoding"])
def test_too_few_phases_are_said(left_out: str) -> None:
    step = StepCycles(*[PhaseCycles(1, 1, 1)] * 3)
    steps = [step] if left_out == "a step" else [step, step]
    encode = [] if left_out == "the encoding" else [("encode", PhaseCycles())]
    with pytest.raises(CalibrationError, match="cycle marks tell of"):
        split_steps([*phases_of(steps), *encode])


def test_a_table_in_cycles_has_its_seconds_times_cycles_per_instruction() -> None:
    table = with_cycles(make_table(COSTS), RATIOS)
    check_table(table, "here")
    assert parse_table(encode_table(table), "here") == table
    plain, cycles = table.step_seconds(8), table.in_cycles().step_seconds(8)
    for phase in ("forward", "backward", "update"):
        assert getattr(cycles, phase) == pytest.approx(getattr(plain, phase) * RATIOS[phase], rel=1e-6)
    assert table.in_cycles().encode_seconds_median == pytest.approx(table.encode_seconds_median * 2.5)


def test_a_store_that_counts_cycles_refuses_a_table_without(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path, tmp_path / "none")
    path = store.save(make_table(COSTS))
    counting = store.counting("cycles")
    with pytest.raises(
        CalibrationError, match=r"cycles were not measured; .*csd-emu calibrate digits_cnn --input 1x8x8"
    ):
        counting.require(SPEC, SHAPE)
    store.save(with_cycles(make_table(COSTS), RATIOS), path)
    assert counting.require(SPEC, SHAPE).step_seconds(2).total > store.require(SPEC, SHAPE).step_seconds(2).total
    assert counting.counting("instructions").require(SPEC, SHAPE) == store.require(SPEC, SHAPE)


@pytest.mark.parametrize("ratio", [0.1, 2000.0])
def test_cycles_that_no_core_takes_are_refused(ratio: float) -> None:
    with pytest.raises(CalibrationError, match="cycles per instruction"):
        check_table(with_cycles(make_table(COSTS), RATIOS | {"forward": ratio}), "here")


def test_rows_of_two_cores_are_refused() -> None:
    one, other = (with_cycles(make_table(COSTS), RATIOS, core=digit * 16) for digit in "01")
    mixed = msgspec.structs.replace(one, rows=(one.rows[0], other.rows[1]))
    with pytest.raises(CalibrationError, match="different core parameters"):
        check_table(mixed, "here")


@pytest.mark.parametrize("counted", ["1" * 16, "", "0" * 15, None])
def test_a_table_of_a_core_with_cycles_of_another_or_none_is_refused(counted: str | None) -> None:
    key = CalibrationKey.of(SPEC, SHAPE, "core." + "0" * 16)
    sound = with_cycles(make_table(COSTS, key), RATIOS)
    check_table(sound, "here")
    assert parse_table(encode_table(sound), "here") == sound
    other = make_table(COSTS, key) if counted is None else with_cycles(make_table(COSTS, key), RATIOS, counted)
    for rows in (other.rows, (sound.rows[0], other.rows[1])):
        with pytest.raises(CalibrationError, match=r"here: the cycles of its rows are not those of core\.0000"):
            check_table(msgspec.structs.replace(sound, rows=rows), "here")
    with pytest.raises(CalibrationError, match=r"the clock is wall and the core core\.0000"):
        check_table(msgspec.structs.replace(sound, clock="wall"), "here")
