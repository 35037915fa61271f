"""Runs on two clocks, compared from what their directories hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_lab.clocks import clock_runs
from csd_lab.clocks.clock_comparison import (
    ARRAY,
    ComparedSeconds,
    bands_of,
    check_made,
    compare_runs,
    compare_seconds,
    errors_of,
)
from csd_lab.clocks.clock_runs import ClockRun, KeptRuns, RunClock, array_on_clock, run_key
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import DeviceStep, RoundRecord, StepRecord
from host.core.sampling.sampling_record import SamplingRecord
from tests.support.clock_comparisons import ERROR, compared, run_of
from tests.support.records import device_round, round_record, with_bands


def test_seconds_of_drives_and_array_are_compared_with_the_stated_interval(tmp_path: Path) -> None:
    told = compared(run_of(tmp_path, "counted", [1.0, 2.0]), run_of(tmp_path, "sampled", [1.02, 2.07]))
    assert [each.of for each in told.seconds] == ["csd-00", ARRAY]
    drive = told.seconds[0]
    assert (drive.counted_seconds, drive.sampled_seconds) == (pytest.approx(3.0), pytest.approx(3.09))
    assert drive.error == pytest.approx(0.03)
    assert drive.interval_seconds == pytest.approx(ERROR * 3.09)
    assert not drive.inside
    assert told.error_worst == pytest.approx(0.03)
    assert errors_of([told], of_array=True, equal_work=False) == [pytest.approx(0.03)]
    assert told.wall_over_counted == pytest.approx(0.2)


@given(error=st.floats(-0.05, 0.05), width=st.floats(0.0, 0.05))
def test_inside_is_what_the_interval_reaches(error: float, width: float) -> None:
    each = ComparedSeconds(of="a", counted_seconds=1.0, sampled_seconds=1 + error, interval_seconds=width)
    assert each.inside == (abs(each.sampled_seconds - 1.0) <= width)


def test_at_equal_work_a_larger_batch_is_no_error() -> None:
    def rounds(batch: int, seconds: float) -> list[RoundRecord]:
        part = DeviceStep(device="csd-00", batch_size=batch, compute_seconds=seconds, expected_seconds=0.01 * batch)
        step = StepRecord(step=1, loss=1.0, learning_rate=0.1, array_seconds=seconds, devices=[part])
        device = device_round("csd-00", batch, PhaseSeconds(forward=seconds), clock="sampled")
        return [round_record([device], steps=[step], array_seconds=seconds)]

    sampling = SamplingRecord(counted_steps=1, steps=1, error=ERROR, start_share=0.0)
    drive, whole = compare_seconds(rounds(25, 0.275), rounds(26, 0.286), sampling)
    assert drive.error == pytest.approx(0.04)
    assert drive.equal_work_error == pytest.approx(0.0)
    assert whole.equal_work_error is None  # what an array's step takes no table says
    drive, whole = compare_seconds(rounds(25, 0.275), rounds(25, 0.286), sampling)
    assert drive.equal_work_error == whole.equal_work_error == pytest.approx(0.04)


def test_only_rounds_that_both_have_are_compared(tmp_path: Path) -> None:
    told = compared(run_of(tmp_path, "counted", [1.0, 1.0, 5.0]), run_of(tmp_path, "sampled", [1.0, 1.0]))
    assert (told.rounds, told.more_rounds) == (2, [1, 0])
    assert told.error_worst == 0.0


def test_weights_are_compared_with_native_drives_that_decided_the_same(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, "counted", [1.0, 1.0], weights=1.5), run_of(tmp_path, "sampled", [1.0, 1.0])]
    assert compared(*runs).weights_difference is None
    same = compared(*runs, run_of(tmp_path / "same", "native", [9.0, 9.0], weights=1.25))
    assert (same.weights_difference, same.counted_weights_difference) == (0.25, 0.5)
    other = compared(*runs, run_of(tmp_path / "other", "native", [9.0, 9.0], batch=33))
    assert other.weights_difference is None


def test_decisions_of_both_are_listed(tmp_path: Path) -> None:
    runs = run_of(tmp_path, "counted", [1.0, 1.0], batch=10), run_of(tmp_path, "sampled", [1.0, 1.0], batch=20)
    told = compared(*runs)
    assert (told.equal_decisions, told.decisions) == (1, 3)  # the beginning, and two retunes


def test_notes_that_both_runs_have_are_no_news(tmp_path: Path) -> None:
    runs = run_of(tmp_path, "counted", [1.0], note="of both"), run_of(tmp_path, "sampled", [1.0], note="of both")
    assert compared(*runs).sampled_notes == []
    other = run_of(tmp_path / "other", "sampled", [1.0], note="of one")
    assert compared(runs[0], other).sampled_notes == ["csd-00: note: of one"]


def test_a_run_that_was_not_sampled_is_not_taken_for_one(tmp_path: Path) -> None:
    counted = run_of(tmp_path, "counted", [1.0])
    with pytest.raises(EnvironmentUnfit, match="whole"):
        compare_runs("job", "array", "cycles", {"counted": counted, "sampled": counted})


DEVICES = [{"profile": "newport", "count": 2}]


def array(**keys: object) -> ArrayConfig:
    return ArrayConfig.model_validate({"name": "lab", "devices": DEVICES, **keys})


@pytest.mark.parametrize("keys", [{}, {"engine": "native"}, {"clock": "sampled"}, {"link": {"bandwidth": "100 MB/s"}}])
def test_an_array_is_the_same_on_every_clock_but_for_that(keys: dict[str, object]) -> None:
    config = array(**keys)
    on = {
        clock: ArrayConfig.model_validate(array_on_clock(config, clock)) for clock in ("counted", "sampled", "native")
    }
    assert (on["counted"].engines, on["counted"].sampled) == (("qemu",), frozenset())
    assert (on["sampled"].engines, on["sampled"].sampled) == (("native",), frozenset({"csd-00", "csd-01"}))
    assert (on["native"].engines, on["native"].sampled) == (("native",), frozenset())
    assert (
        len({each.model_copy(update={"engine": "qemu", "clock": "auto"}).model_dump_json() for each in on.values()})
        == 1
    )


def test_kept_runs_of_other_content_are_not_taken() -> None:
    job = {"model": "digits_cnn", "seed": 0}
    keys = {
        run_key(job, array(), "counted"),
        run_key(job, array(), "sampled"),
        run_key(job | {"seed": 1}, array(), "counted"),
        run_key(job, array(core_model="cycles"), "counted"),
    }
    assert len(keys) == 4
    assert run_key(job, array(), "counted") == run_key(dict(job), array(engine="native"), "counted")


def test_a_second_run_of_the_same_content_is_kept_beside_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def run(_: Path, __: ArrayConfig, clock: RunClock, folder: Path, runs: Path) -> ClockRun:
        (directory := runs / "run").mkdir(parents=True)
        made.append(folder)
        return ClockRun(clock, directory, float(len(made)), 1.0)

    monkeypatch.setattr(clock_runs, "run_on_clock", run)
    kept = KeptRuns(tmp_path)

    def wall_seconds(again: bool) -> float:
        return kept.run("job", {"seed": 0}, array(), "counted", again=again).wall_seconds

    assert [wall_seconds(again) for again in (False, True, False, True)] == [1.0, 2.0, 1.0, 2.0]
    assert len(set(made)) == 2


def test_real_drives_are_refused() -> None:
    real = array(engine="remote", inventory="drives.yaml", devices=[{"drives": ["bay-1"]}])
    with pytest.raises(ConfigurationError, match="bay-1"):
        check_made(real)


@given(seconds=st.floats(0.01, 100.0), late=st.booleans())
def test_the_bands_of_compared_seconds_hold_them_and_work_that_came_too_late_has_none(
    seconds: float, late: bool
) -> None:
    part = device_round("csd-00", 8, PhaseSeconds(forward=seconds), clock="sampled")
    missed = device_round("csd-00", 8, PhaseSeconds(forward=seconds), clock="sampled", straggler=True)
    rounds = [with_bands(round_record([part])), *([with_bands(round_record([missed]))] if late else [])]
    bands = bands_of(rounds)
    assert bands.keys() == ({ARRAY} if late else {"csd-00", ARRAY})
    for name, band in bands.items():
        whole = seconds if name != ARRAY else sum(record.array_seconds for record in rounds)
        assert band.low * (1 - 1e-9) <= whole <= band.high * (1 + 1e-9)
    assert bands_of([round_record([part])]) == {}
