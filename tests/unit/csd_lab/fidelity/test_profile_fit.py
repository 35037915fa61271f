"""How far a drive is from its emulation: laws over tables that are made to differ in known ways."""

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationTable, spread_of
from csd_emu.profiles.profile import Profile, Sourced
from csd_lab.fidelity.profile_fit import PARALLEL, SERIAL, compare, fit_scales, suggest
from firmware_agent.common.errors import CalibrationError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.app.real_machine import MOST_SPREAD, check_spread
from tests.support.calibration import make_table

NEWPORT = get_profile("newport")
factors = st.floats(0.1, 10)


def drive_of(emulated: CalibrationTable, profile: Profile, factor: float = 1.0) -> CalibrationTable:
    """The table of a drive that takes `factor` times as long as its profile says."""
    rows = tuple(
        msgspec.structs.replace(row, steps=tuple(times(profile.device_seconds(step), factor) for step in row.steps))
        for row in emulated.rows
    )
    encode = tuple(factor * profile.scale("encode") * seconds for seconds in emulated.encode_seconds)
    return msgspec.structs.replace(emulated, clock="wall", core=profile.name, rows=rows, encode_seconds=encode)


def times(seconds: PhaseSeconds, factor: float) -> PhaseSeconds:
    return PhaseSeconds(*(factor * getattr(seconds, phase) for phase in PhaseSeconds.__struct_fields__))


@given(factor=factors)
def test_a_drive_that_is_so_many_times_slower_is_said_to_be_so(factor: float) -> None:
    emulated = make_table({1: 0.01, 8: 0.05, 32: 0.2})
    rows = compare("digits_cnn", emulated, drive_of(emulated, NEWPORT, factor), NEWPORT)
    assert [row.batch_size for row in rows] == emulated.batches
    assert [row.ratio for row in rows] == pytest.approx([factor] * len(rows))
    assert not any(row.extrapolated for row in rows)


@given(cycles=st.floats(0.2, 3), efficiency=st.floats(0.3, 1))
def test_the_figures_of_a_drive_are_found_again(cycles: float, efficiency: float) -> None:
    real = dataclasses.replace(
        NEWPORT, instructions_per_cycle=Sourced(cycles, "drawn"), parallel_efficiency=Sourced(efficiency, "drawn")
    )
    emulated = make_table({1: 0.01, 8: 0.05, 32: 0.2})
    fits = fit_scales([(emulated, drive_of(emulated, real))], NEWPORT)
    assert [fit.kind for fit in fits] == [PARALLEL, SERIAL]
    assert [fit.worst_error for fit in fits] == pytest.approx([0, 0], abs=1e-9)
    assert [fit.fitted_scale for fit in fits] == pytest.approx([real.scale("forward"), real.scale("encode")])
    found = {figure.name: figure.fitted for figure in suggest(fits, NEWPORT)}
    assert found == pytest.approx({"instructions_per_cycle": cycles, "parallel_efficiency": efficiency})


def test_a_batch_without_a_counted_row_is_marked() -> None:
    emulated = make_table({1: 0.01, 8: 0.05, 32: 0.2})
    drive = drive_of(emulated, NEWPORT)
    fewer = msgspec.structs.replace(emulated, rows=emulated.rows[:-1])
    assert [row.extrapolated for row in compare("m", fewer, drive, NEWPORT)][-1]


@given(seconds=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20), factor=st.floats(1e-3, 1e3))
def test_spread_has_no_unit_and_is_none_of_equal_steps(seconds: list[float], factor: float) -> None:
    assert spread_of([factor * each for each in seconds]) == pytest.approx(spread_of(seconds), abs=1e-9)
    assert spread_of(seconds[:1] * 5) == 0
    assert spread_of(seconds) >= 0


def test_steps_that_scatter_make_no_table() -> None:
    steady = drive_of(make_table({1: 0.01, 8: 0.05, 32: 0.2}), NEWPORT)
    check_spread(steady, "drive left")
    noisy = tuple(PhaseSeconds(forward=1 + MOST_SPREAD * 2 * number) for number in range(5))
    rows = (msgspec.structs.replace(steady.rows[0], steps=noisy), *steady.rows[1:])
    with pytest.raises(
        CalibrationError, match=r"drive left: the 5 steps at batch \d+ scatter by .* keep other work off"
    ):
        check_spread(msgspec.structs.replace(steady, rows=rows), "drive left")
