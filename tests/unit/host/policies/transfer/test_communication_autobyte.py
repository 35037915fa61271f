import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import CheckpointError, ConfigurationError, DeviceError
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.autobyte import MARGIN, TOLERANCE, VERIFY_STEPS, AutoByte
from host.policies.transfer.setting_grid import candidates
from host.policies.transfer.transfer_tuner import FixedSending, StepSeen
from tests.support.communication_tuning import FIRST, Knowing, drive, seconds_of, seen
from tests.support.examples import examples

RATE = 1e8


def best(rate: float) -> float:
    return min(seconds_of(each, rate) for each in candidates())


@given(st.floats(1e6, 1e10))
def test_it_finds_the_best_setting_of_a_link_that_stays(rate: float) -> None:
    passed = drive(AutoByte(FIRST, Knowing()), [rate] * 10)
    assert seconds_of(passed[-1][0], rate) <= best(rate) * math.exp(MARGIN)


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(st.floats(1e6, 1e10), st.integers(0, 10**6))
def test_with_any_predictor_it_is_hardly_worse_than_the_beginning(rate: float, salt: int) -> None:
    """Whatever a predictor says: a setting that turns out worse is given up, and not tried again."""
    wrong = Knowing(lambda each: hash((each.slice_bytes, each.credit_bytes, salt)) % 1000 / 300)
    passed = drive(AutoByte(FIRST, wrong), [rate] * 600)
    start = seconds_of(FIRST, rate) * math.exp(TOLERANCE)
    trials = [change for _, change in passed if change is not None]
    # Each trial lasts from its announcement to the fall-back; none is made twice after it failed.
    assert len(trials) <= 2 * len(candidates())
    assert seconds_of(passed[-1][0], rate) <= start * math.exp(TOLERANCE)


def test_it_follows_a_step_in_bandwidth_within_a_few_steps() -> None:
    for low, high in ((1e7, 1e8), (1e8, 1e7), (3e7, 6e7)):
        passed = drive(AutoByte(FIRST, Knowing()), [low] * 40 + [high] * 8)
        assert seconds_of(passed[44][0], high) <= best(high) * 1.01
        assert seconds_of(passed[39][0], low) <= best(low) * 1.01


def test_a_change_holds_from_the_announced_step_and_no_earlier() -> None:
    tuner = AutoByte(FIRST, Knowing())
    change = tuner.observe(seen(1, FIRST, 1.0))
    assert change is not None
    assert change.step == 2
    assert [tuner.sending(step) for step in range(1, 4)] == [FIRST] + [change.sending] * 2
    assert change.gain > 0
    assert "knowing" in change.reason


@given(st.lists(st.sampled_from([1e7, 2e7, 1e8, 5e8]), min_size=1, max_size=40))
def test_what_was_announced_for_a_step_stays_unless_a_change_says_otherwise(rates: list[float]) -> None:
    tuner = AutoByte(FIRST, Knowing())
    for step, rate in enumerate(rates, 1):
        now, following = tuner.sending(step), tuner.sending(step + 1)
        change = tuner.observe(seen(step, now, seconds_of(now, rate), rate))
        assert tuner.sending(step + 1) == (following if change is None else change.sending)
        assert change is None or change.step == step + 1


def test_a_setting_that_is_measured_worse_is_given_up_until_conditions_change() -> None:
    bad = TransferSettings("priority", 1 << 20, 16 << 20)
    praised = Knowing(lambda each: -9.0 if each == bad else 0.0 if each == FIRST else 9.0)
    tuner = AutoByte(FIRST, praised)
    passed = drive(tuner, [RATE] * 60)
    changes = [change for _, change in passed if change is not None]
    assert [change.sending for change in changes] == [bad, FIRST]
    assert changes[1].step - changes[0].step <= VERIFY_STEPS + 1
    assert "falls back" in changes[1].reason
    again = drive(tuner, [RATE / 4] * 4, first=61)
    assert bad in [change.sending for _, change in again if change is not None]


def test_a_gain_below_the_margin_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.policies.transfer.autobyte.MARGIN", 9.0)
    tuner = AutoByte(FIRST, Knowing())
    passed = drive(tuner, [RATE] * 50 + [RATE / 10] * 50)
    assert {sending for sending, _ in passed} == {FIRST}


def test_it_is_asked_once_a_step_at_most() -> None:
    predictor = Knowing()
    drive(AutoByte(FIRST, predictor), [RATE] * 160)
    assert 0 < predictor.asked <= 160


def test_nothing_is_decided_before_a_bandwidth_was_measured() -> None:
    predictor = Knowing()
    tuner = AutoByte(FIRST, predictor)
    for step in range(1, 40):
        blind = StepSeen(step, 1.0, FIRST, seen(1, FIRST, 1.0).costs, (math.nan,) * 2, (math.nan,) * 2)
        assert tuner.observe(blind) is None
    assert predictor.asked == 0


def test_a_device_that_joins_is_a_change_of_conditions() -> None:
    predictor = Knowing()
    tuner = AutoByte(FIRST, predictor)
    for step in range(1, 6):
        tuner.observe(seen(step, tuner.sending(step), 1.0))
    asked = predictor.asked
    tuner.observe(seen(6, tuner.sending(6), 1.0, drives=3))
    assert predictor.asked == asked + 1


def test_a_resumed_run_begins_with_the_setting_it_had() -> None:
    tuner = AutoByte(FIRST, Knowing())
    drive(tuner, [RATE / 10] * 10)
    again = AutoByte(FIRST, Knowing())
    again.load_state(tuner.state())
    assert again.sending(1) == tuner.sending(100) != FIRST


@pytest.mark.parametrize("state", [{}, {"slice_bytes": 0, "credit_bytes": 1}, {"slice_bytes": None, "credit_bytes": 5}])
def test_a_state_of_something_else_is_refused(state: dict[str, Any]) -> None:
    tuner = AutoByte(FIRST, Knowing())
    with pytest.raises(CheckpointError, match="AutoByte"):
        tuner.load_state(state)
    assert tuner.sending(1) == FIRST


@pytest.mark.parametrize("wrong", [TransferSettings(), TransferSettings("priority", 1 << 20)])
def test_a_setting_that_cannot_be_tuned_is_refused(wrong: TransferSettings) -> None:
    with pytest.raises(ConfigurationError):
        AutoByte(wrong, Knowing())
    with pytest.raises(ConfigurationError):
        AutoByte(FIRST, Knowing(), settings=[wrong])


def wrong_steps() -> list[StepSeen]:
    costs = seen(1, FIRST, 1.0).costs
    return [
        StepSeen(0, 1.0, FIRST, costs, (1e8,), (1e-3,)),
        StepSeen(1, 0.0, FIRST, costs, (1e8,), (1e-3,)),
        StepSeen(1, math.nan, FIRST, costs, (1e8,), (1e-3,)),
        StepSeen(1, 1.0, FIRST, costs, (), ()),
        StepSeen(1, 1.0, FIRST, costs, (1e8, 1e8), (1e-3,)),
        StepSeen(1, 1.0, FIRST, costs, (0.0,), (1e-3,)),
        StepSeen(1, 1.0, FIRST, costs, (-1.0,), (1e-3,)),
        StepSeen(1, 1.0, FIRST, costs, (math.inf,), (1e-3,)),
        StepSeen(1, 1.0, FIRST, costs, (1e8,), (-1e-3,)),
        StepSeen(1, 1.0, FIRST, costs, (1e8,), (1e-3,), slice_seconds=-1.0),
        StepSeen(1, 1.0, FIRST, costs, (1e8,), (1e-3,), load=0.0),
    ]


def test_a_step_that_cannot_be_is_refused_and_changes_nothing(subtests: pytest.Subtests) -> None:
    for step in wrong_steps():
        with subtests.test(step=step):
            predictor = Knowing()
            for tuner in (AutoByte(FIRST, predictor), FixedSending(FIRST)):
                with pytest.raises(DeviceError, match="step"):
                    tuner.observe(step)
                assert tuner.sending(1) == tuner.sending(99) == FIRST
            assert predictor.asked == 0


def test_a_fixed_setting_stays() -> None:
    tuner = FixedSending(FIRST)
    assert {sending for sending, _ in drive(tuner, [1e6, 1e9] * 5)} == {FIRST}
    tuner.load_state(tuner.state())
    assert tuner.sending(7) == FIRST
