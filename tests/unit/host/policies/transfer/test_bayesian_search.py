import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import CheckpointError, ConfigurationError, DeviceError
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.bayesian_search import SearchRules, StaticSearch
from host.policies.transfer.setting_grid import DEFAULT
from tests.support.communication_tuning import FIRST, drive, seconds_of, seen
from tests.support.examples import examples

QUICK = SearchRules(points=6, random=4, steps=2, ahead=2, settle=1)
RATE = 1e8


@pytest.mark.slow
def test_a_search_measures_its_points_and_then_keeps_the_best() -> None:
    tuner = StaticSearch(FIRST, seed=3, rules=QUICK)
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
    passed = drive(StaticSearch(FIRST, seed=3, rules=QUICK), [RATE] * 60)
    assert len({sending.slice_bytes for sending, _ in passed}) >= 5
    assert len({sending.credit_bytes for sending, _ in passed}) >= 5


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(st.integers(0, 1000), st.floats(3e6, 3e9))
def test_the_choice_is_no_worse_than_the_beginning(seed: int, rate: float) -> None:
    tuner = StaticSearch(FIRST, seed, QUICK)
    passed = drive(tuner, [rate] * 60)
    assert seconds_of(passed[-1][0], rate) <= seconds_of(FIRST, rate)


@pytest.mark.slow
def test_the_surrogate_finds_what_random_points_do_not() -> None:
    """Over some seeds, five asked points beat five more random ones."""
    asked, drawn = [], []  # type: ignore[var-annotated]
    for seed in range(4):
        for found, random in ((asked, 8), (drawn, 13)):
            tuner = StaticSearch(FIRST, 100 * seed, SearchRules(points=13, random=random, steps=1, ahead=2, settle=0))
            found.append(seconds_of(drive(tuner, [RATE] * 60)[-1][0], RATE))
    assert sum(asked) < sum(drawn)


def test_the_first_measurement_is_thrown_away() -> None:
    tuner = StaticSearch(FIRST, 1, SearchRules(points=2, random=2, steps=2, ahead=2, settle=0))
    for step, seconds in enumerate((50.0, 50.0, 3.0, 5.0), 1):
        assert not tuner.measured
        tuner.observe(seen(step, tuner.sending(step), seconds))
    assert tuner.measured == ((FIRST, 4.0),)


def test_a_point_is_announced_ahead_and_steps_before_it_do_not_count() -> None:
    rules = SearchRules(points=2, random=2, steps=2, ahead=5, settle=1)
    tuner = StaticSearch(FIRST, 1, rules)
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
def test_a_search_that_goes_on_keeps_what_was_measured() -> None:
    tuner = StaticSearch(FIRST, 5, QUICK)
    drive(tuner, [RATE] * 16)
    assert 1 < len(tuner.measured) < 6
    again = StaticSearch(FIRST, 5, QUICK)
    again.load_state(tuner.state())
    assert again.measured == tuner.measured
    drive(again, [RATE] * 60, first=17)
    assert again.finished
    assert again.measured[: len(tuner.measured)] == tuner.measured
    finished = StaticSearch(FIRST, 5, QUICK)
    finished.load_state(again.state())
    assert finished.finished
    assert finished.sending(1) == again.sending(10**6)
    unborn = StaticSearch(FIRST, 5, QUICK)
    unborn.load_state(StaticSearch(FIRST, 5, QUICK).state())
    assert unborn.sending(1) == FIRST


@pytest.mark.parametrize(
    "state",
    [{}, {"points": 3, "finished": False}, {"points": [[1, 2]], "finished": False},
     {"points": [[0, 1, 1.0]], "finished": False}, {"points": [], "finished": True},
     {"points": [[1024, 1024, -1.0]], "finished": False}],
)  # fmt: skip
def test_a_state_of_something_else_is_refused(state: dict[str, Any]) -> None:
    tuner = StaticSearch(FIRST, 5, QUICK)
    with pytest.raises(CheckpointError, match="search"):
        tuner.load_state(state)
    assert tuner.measured == ()
    assert tuner.sending(1) == FIRST


@pytest.mark.parametrize(
    "rules",
    [{"points": 0, "random": 0}, {"random": 16}, {"random": 0}, {"steps": 0}, {"settle": -1}, {"ahead": 0}],
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
        TransferSettings("priority", 2 << 20, 1024),
    ],
)
def test_a_beginning_without_sizes_is_refused(first: TransferSettings) -> None:
    with pytest.raises(ConfigurationError):
        StaticSearch(first, 1)


def test_a_step_that_took_no_time_is_refused_and_changes_nothing() -> None:
    tuner = StaticSearch(DEFAULT, 1, QUICK)
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(DeviceError):
            tuner.observe(seen(1, FIRST, wrong))
    assert tuner.state() == StaticSearch(DEFAULT, 1, QUICK).state()
