import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import CheckpointError, ConfigurationError, DeviceError
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.bayesian_search import FIRST_OCTAVES, SearchRules, StaticSearch
from host.policies.transfer.setting_grid import candidates
from tests.support.communication_tuning import FIRST, drive, seconds_of, seen
from tests.support.examples import examples

QUICK = SearchRules(points=6, around=4, steps=2, ahead=2, settle=1, enough=0.0)
RATE = 1e8


@pytest.mark.slow
def test_a_search_measures_its_points_and_then_keeps_the_best() -> None:
    tuner = StaticSearch(FIRST, QUICK)
    passed = drive(tuner, [RATE] * 60)
    assert tuner.finished
    assert len(tuner.measured) == 6
    best = min(tuner.measured, key=lambda point: point[1])[0]
    assert {sending for sending, _ in passed[-20:]} == {best}
    changes = [change for _, change in passed if change is not None]
    assert len(changes) == 6
    assert changes[-1].sending == best
    assert changes[-1].gain == pytest.approx(math.log(seconds_of(FIRST, RATE) / seconds_of(best, RATE)))


@pytest.mark.slow
def test_both_slice_size_and_credit_are_searched_and_applied() -> None:
    passed = drive(StaticSearch(FIRST, QUICK), [RATE] * 60)
    assert len({sending.slice_bytes for sending, _ in passed}) >= 5
    assert len({sending.credit_bytes for sending, _ in passed}) >= 5


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(st.floats(3e6, 3e9))
def test_the_choice_is_no_worse_than_the_beginning(rate: float) -> None:
    tuner = StaticSearch(FIRST, QUICK)
    passed = drive(tuner, [rate] * 60)
    assert seconds_of(passed[-1][0], rate) <= seconds_of(FIRST, rate)


@pytest.mark.parametrize("rate", [3e6, 1e8, 3e9])
def test_the_surrogate_finds_what_the_first_points_do_not(rate: float) -> None:
    """The best is up to three octaves away; the law has it 5 % faster per square octave."""
    tuner = StaticSearch(FIRST, SearchRules(steps=1, settle=0))
    chosen = drive(tuner, [rate] * 200)[-1][0]
    assert tuner.finished
    least = min(seconds_of(each, rate) for each in candidates(per_octave=2))
    assert seconds_of(chosen, rate) <= 1.01 * least
    assert seconds_of(chosen, rate) <= min(seconds for _, seconds in tuner.measured[: len(FIRST_OCTAVES)])


def test_where_nothing_matters_the_search_ends_after_its_first_points() -> None:
    tuner, step = StaticSearch(FIRST, SearchRules(steps=1, settle=0)), 0
    while not tuner.finished:
        step += 1
        tuner.observe(seen(step, tuner.sending(step), 1.0))
    assert len(tuner.measured) <= 15


def test_a_burst_in_a_few_steps_of_a_point_does_not_count() -> None:
    tuner = StaticSearch(FIRST, SearchRules(points=1, around=1, steps=5, settle=0))
    for step, seconds in enumerate([1.0] * 5 + [1.0, 9.0, 1.0, 9.0, 1.0], 1):
        tuner.observe(seen(step, FIRST, seconds))
    assert tuner.measured == ((FIRST, 1.0),)


def test_the_first_measurement_is_thrown_away() -> None:
    tuner = StaticSearch(FIRST, SearchRules(points=2, around=2, steps=2, ahead=2, settle=0))
    for step, seconds in enumerate((50.0, 50.0, 3.0, 5.0), 1):
        assert not tuner.measured
        tuner.observe(seen(step, tuner.sending(step), seconds))
    assert tuner.measured == ((FIRST, 4.0),)


def test_a_point_is_announced_ahead_and_steps_before_it_do_not_count() -> None:
    rules = SearchRules(points=2, around=2, steps=2, ahead=5, settle=1)
    tuner = StaticSearch(FIRST, rules)
    changes = [tuner.observe(seen(step, FIRST, 1.0)) for step in range(1, 6)]
    change = changes[-1]
    assert changes[:-1] == [None] * 4
    assert change is not None
    assert change.step == 10
    assert [tuner.sending(step) for step in range(6, 12)] == [FIRST] * 4 + [change.sending] * 2
    assert change.sending != FIRST
    for step in range(6, 11):
        tuner.observe(seen(step, tuner.sending(step), 100.0))
    tuner.observe(seen(11, FIRST, 100.0))  # an old setting, late
    tuner.observe(seen(12, change.sending, 1.0))
    tuner.observe(seen(13, change.sending, 3.0))
    assert tuner.measured[1] == (change.sending, 2.0)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(st.integers(0, 40))
def test_a_search_goes_on_from_its_state_as_if_nothing_had_happened(steps: int) -> None:
    tuner, again = StaticSearch(FIRST, QUICK), StaticSearch(FIRST, QUICK)
    drive(tuner, [RATE] * steps)
    again.load_state(json.loads(json.dumps(tuner.state())))
    ends = [drive(each, [RATE] * 40, first=steps + 1) for each in (tuner, again)]
    assert ends[0] == ends[1]
    assert again.finished
    assert again.measured == tuner.measured


def test_a_state_of_the_release_before_has_no_point_under_way() -> None:
    tuner = StaticSearch(FIRST, QUICK)
    tuner.load_state({"points": [[1024, 2048, 1.0]], "finished": False})
    assert tuner.measured == ((TransferSettings("priority", 1024, 2048), 1.0),)
    assert tuner.sending(1) == tuner.sending(100)


@pytest.mark.parametrize(
    "state",
    [{}, {"points": 3, "finished": False}, {"points": [[1, 2]], "finished": False},
     {"points": [[0, 1, 1.0]], "finished": False}, {"points": [], "finished": True},
     {"points": [[1024, 1024, -1.0]], "finished": False}, {"points": [[1024, 1024, 1.0]] * 7, "finished": False},
     {"points": [], "finished": False, "seconds": [1.0, 1.0]}, {"points": [], "finished": False, "seconds": [math.nan]},
     {"points": [], "finished": False, "first": 0},
     {"points": [], "finished": False, "first": math.inf}, {"points": [], "finished": False, "seconds": 1.0},
     {"points": [[1024, 1024, 1.0]], "finished": False, "warm": False}],
)  # fmt: skip
def test_a_state_of_something_else_is_refused(state: dict[str, Any]) -> None:
    tuner = StaticSearch(FIRST, QUICK)
    with pytest.raises(CheckpointError, match="search"):
        tuner.load_state(state)
    assert tuner.measured == ()
    assert tuner.sending(1) == FIRST


@pytest.mark.parametrize(
    "rules",
    [
        {"points": 0, "around": 0},
        {"points": 3, "around": 4},
        {"around": 9},
        {"around": 0},
        {"steps": 0},
        {"settle": -1},
        {"ahead": 0},
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        SearchRules(**rules)


@pytest.mark.parametrize(
    "first",
    [
        TransferSettings(),
        TransferSettings("priority", 1024),
        TransferSettings("priority", None, 1024),
    ],
)
def test_a_beginning_without_sizes_is_refused(first: TransferSettings) -> None:
    with pytest.raises(ConfigurationError):
        StaticSearch(first)


def test_a_step_that_took_no_time_is_refused_and_changes_nothing() -> None:
    tuner = StaticSearch(FIRST, QUICK)
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(DeviceError):
            tuner.observe(seen(1, FIRST, wrong))
    assert tuner.state() == StaticSearch(FIRST, QUICK).state()
