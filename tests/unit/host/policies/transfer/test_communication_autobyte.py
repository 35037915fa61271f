import math
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.layer_work import DriveTransfers, scale_compute
from firmware_agent.common.errors import CheckpointError, ConfigurationError, DeviceError
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.autobyte import BEGIN_STEPS, TOLERANCE, TRIAL_STEPS, AutoByte
from host.policies.transfer.setting_grid import candidates
from host.policies.transfer.speedup_predictor import SimulatedSettings, find_predictor
from host.policies.transfer.transfer_tuner import Change, FixedSending, StepSeen, TransferTuner, make_tuner
from tests.support.communication_tuning import COSTS, FIRST, Knowing, drive, seconds_of, seen
from tests.support.examples import examples

RATE = 1e8
FEW = [each for each in candidates() if (each.slice_bytes or 0) > 1 << 15 and (each.credit_bytes or 0) <= 1 << 20]


def best(rate: float) -> float:
    return min(seconds_of(each, rate) for each in candidates())


def drive_by(
    tuner: TransferTuner, law: Callable[[TransferSettings], float], steps: int, first: int = 1
) -> list[tuple[TransferSettings, Change | None]]:
    """Have a tuner go through steps of one link, which take what a law says."""
    passed = []
    for step in range(first, first + steps):
        sending = tuner.sending(step)
        passed.append((sending, tuner.observe(seen(step, sending, law(sending), RATE))))
    return passed


@given(st.floats(1e6, 1e10))
def test_it_finds_the_best_setting_of_a_link_that_stays(rate: float) -> None:
    passed = drive(AutoByte(FIRST, Knowing()), [rate] * 60)
    assert seconds_of(passed[-1][0], rate) <= best(rate) * 1.01


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(st.floats(1e6, 1e10), st.integers(0, 10**6))
def test_with_any_predictor_it_ends_no_worse_than_at_the_beginning(rate: float, salt: int) -> None:
    """Whatever a predictor says: a setting that turns out worse is given up."""
    wrong = Knowing(lambda each: hash((each.slice_bytes, each.credit_bytes, salt)) % 1000 / 300)
    passed = drive(AutoByte(FIRST, wrong), [rate] * 400)
    assert seconds_of(passed[-1][0], rate) <= seconds_of(FIRST, rate) * math.exp(TOLERANCE)


def test_it_follows_a_step_in_bandwidth_within_two_dozen_steps() -> None:
    """Slices get smaller by one octave with each trial, no faster; larger ones at once."""
    for low, high in ((1e7, 1e8), (1e8, 1e7), (3e7, 6e7)):
        passed = drive(AutoByte(FIRST, Knowing()), [low] * 60 + [high] * 24)
        assert seconds_of(passed[-1][0], high) <= best(high) * 1.02
        assert seconds_of(passed[59][0], low) <= best(low) * 1.02


def test_a_change_holds_from_the_announced_step_and_no_earlier() -> None:
    tuner = AutoByte(FIRST, Knowing())
    changes = [tuner.observe(seen(step, FIRST, 1.0)) for step in range(1, BEGIN_STEPS + 1)]
    change = changes.pop()
    assert changes == [None] * len(changes)
    assert change is not None
    assert change.step == BEGIN_STEPS + 1
    assert [tuner.sending(BEGIN_STEPS + step) for step in range(3)] == [FIRST] + [change.sending] * 2
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


def test_a_setting_that_is_measured_worse_is_given_up_before_its_trial_is_over() -> None:
    bad = TransferSettings("priority", 1 << 20, 2 << 20)
    tuner = AutoByte(FIRST, Knowing(lambda each: -9.0 if each == bad else 0.0 if each == FIRST else 9.0))
    passed = drive(tuner, [RATE] * 60)
    changes = [change for _, change in passed if change is not None]
    assert [change.sending for change in changes[:2]] == [bad, FIRST]
    assert changes[1].step - changes[0].step <= 2 < TRIAL_STEPS
    assert "falls back" in changes[1].reason
    assert [sending for sending, _ in passed].count(bad) <= 2


def lost_steps(passed: list[tuple[TransferSettings, Change | None]], law: Callable[[TransferSettings], float]) -> float:
    """Steps' time that was lost against what the run began with, trials counted."""
    return sum(law(sending) / law(FIRST) - 1 for sending, _ in passed)


def away(sending: TransferSettings) -> float:
    """How unlike it is what a run begins with, from 0 to 1."""
    pairs = ((sending.slice_bytes, FIRST.slice_bytes), (sending.credit_bytes, FIRST.credit_bytes))
    return min(1.0, sum(abs(math.log2((one or 1) / (first or 1))) for one, first in pairs) / 4)


def promise(gain: float) -> Knowing:
    """A predictor that knows nothing, and promises so much of what is most unlike the beginning."""
    return Knowing(lambda each: -math.log(seconds_of(each, RATE)) - gain * away(each))


def test_where_all_settings_are_alike_it_stays_with_what_the_run_began_with() -> None:
    """Others are tried; but what is as good as another one here may not be so when conditions change."""
    passed = drive_by(AutoByte(FIRST, promise(0.01), FEW), lambda sending: 1.0, 120)
    assert any(sending != FIRST for sending, _ in passed)
    assert sum(sending == FIRST for sending, _ in passed) > 60


def test_a_setting_is_not_kept_under_other_conditions_where_nothing_says_that_it_is_better() -> None:
    tuner = AutoByte(FIRST, Knowing(), FEW)
    drive(tuner, [RATE / 20] * 40)
    other = tuner.sending(41)
    assert other != FIRST
    tuner._predictor = promise(0.05)
    passed = drive_by(tuner, lambda sending: math.exp(0.1 * away(sending)), 30, 41)
    assert [sending for sending, _ in passed].count(other) < 10
    assert passed[-1][0] == FIRST


def test_first_steps_that_are_long_say_nothing_of_the_setting_they_were_sent_with() -> None:
    """Drives build the model in them: what the run began with is neither given up for that, nor taken up again."""
    tuner = AutoByte(FIRST, promise(0.02), FEW)
    long = (2.0, 1.6, 1.6)
    for step in range(1, 80):
        sending = tuner.sending(step)
        seconds = long[step - 1] if step <= len(long) else math.exp(0.05 * away(sending))
        tuner.observe(seen(step, sending, seconds))
    assert tuner.sending(80) == FIRST


@settings(max_examples=examples(4))
@given(st.floats(0.005, 0.02))
def test_what_trials_lose_is_counted_and_is_part_of_a_step_and_no_more(worse: float) -> None:
    """Of a predictor that promises something of each setting, and never keeps it."""

    def law(sending: TransferSettings) -> float:
        return math.exp(worse * away(sending))

    tuner = AutoByte(FIRST, promise(0.02), FEW)
    lost = lost_steps(drive_by(tuner, law, 200), law)
    assert 0 < lost < 0.5
    assert tuner._lost == pytest.approx(lost, rel=0.05)


@pytest.mark.parametrize(("lost", "promised", "tried"), [(0.0, 0.02, True), (1.0, 0.02, False), (1.0, 0.5, True)])
def test_who_has_lost_tries_only_what_promises_more(lost: float, promised: float, tried: bool) -> None:
    tuner = AutoByte(FIRST, promise(promised), FEW)
    tuner._lost = lost
    assert any(change is not None for _, change in drive_by(tuner, lambda sending: 1.0, 40)) == tried


def test_what_was_measured_comes_back_with_its_conditions() -> None:
    """A link that was as fast before has the setting that was best then, without another trial."""
    tuner = AutoByte(FIRST, Knowing())
    drive(tuner, [RATE] * 80)
    known = tuner.sending(81)
    drive(tuner, [RATE / 20] * 80, first=81)
    passed = drive(tuner, [RATE] * 6, first=161)
    assert passed[-1][0] == known


def test_slices_that_are_tried_are_half_as_large_as_those_that_crossed_and_no_smaller() -> None:
    small = Knowing(lambda each: -5.0 + math.log2(each.slice_bytes or 1) / 4)
    tuner, smallest = AutoByte(FIRST, small), FIRST.slice_bytes or 0
    for sending, _ in drive(tuner, [RATE] * 40):
        assert 2 * (sending.slice_bytes or 0) >= smallest
        smallest = min(smallest, sending.slice_bytes or 0)
    assert smallest < (FIRST.slice_bytes or 0) / 2


def test_a_predictor_has_a_name_in_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(find_predictor("model"), SimulatedSettings)
    with pytest.raises(ConfigurationError, match=r"communication\.predictor.*no installed package.*'oracle'"):
        find_predictor("oracle")
    point = metadata.EntryPoint("network", "csd_lab.generate.autobyte.meta_network:shipped_network", "")
    monkeypatch.setattr(metadata, "entry_points", lambda group, name: [point] if name == "network" else [])
    assert find_predictor("network").name == "network"
    tuner = make_tuner("autobyte", FIRST, predictor="network")
    reasons = [change.reason for _, change in drive(tuner, [RATE] * 30) if change is not None]
    assert any(reason.startswith("network:") for reason in reasons)


def test_it_is_asked_once_a_step_at_most() -> None:
    predictor = Knowing()
    drive(AutoByte(FIRST, predictor), [RATE] * 160)
    assert 0 < predictor.asked <= 160


def test_nothing_is_decided_before_a_bandwidth_was_measured() -> None:
    predictor = Knowing()
    tuner = AutoByte(FIRST, predictor)
    for step in range(1, 40):
        blind = StepSeen(step, 1.0, FIRST, (DriveTransfers(COSTS, np.zeros((0, 4))),) * 2)
        assert tuner.observe(blind) is None
    assert predictor.asked == 0


def test_a_device_that_joins_is_a_change_of_conditions() -> None:
    predictor = Knowing()
    tuner = AutoByte(FIRST, predictor)
    for step in range(1, 20):
        tuner.observe(seen(step, tuner.sending(step), 1.0))
    tuner.observe(seen(20, tuner.sending(20), 1.0, drives=3))
    assert predictor.participants[-1] == 3 != predictor.participants[-3]


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
    drive = seen(1, FIRST, 1.0).drives[0]
    rows = [(0.5, 1, 0, 1), (0, 0, 0, 1), (0, -1, 0, 1), (1, 1, math.nan, 1), (1, 1, 0, math.inf), (0, 1, 2, 1)]
    return [
        StepSeen(0, 1.0, FIRST, (drive,)),
        *(StepSeen(1, seconds, FIRST, (drive,)) for seconds in (0.0, -1.0, math.nan, math.inf)),
        StepSeen(1, 1.0, FIRST, ()),
        *(StepSeen(1, 1.0, FIRST, (drive, DriveTransfers(COSTS, np.array([row])))) for row in rows),
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


def test_conditions_that_come_back_are_told_apart_although_their_steps_took_the_same() -> None:
    """Without noise, as steps are composed: a drive that nobody waits for is 0.3 to 0.8 times as busy, in turn."""
    tuner = AutoByte(FIRST, Knowing(), FEW)
    step = 0
    for load in (0.3, 0.5, 0.8, 0.3, 0.8, 0.5):
        for _ in range(60):
            step += 1
            sending = tuner.sending(step)
            plain = seen(step, sending, 1.0, RATE)
            other = plain.drives[1]._replace(costs=scale_compute(COSTS, load))
            tuner.observe(replace(plain, drives=(plain.drives[0], other)))
    assert len(tuner._states) <= 3


def test_what_was_lost_survives_a_resume_and_a_resumed_run_waits_for_its_first_steps() -> None:
    tuner = AutoByte(FIRST, Knowing(lambda each: -0.3 * (each != FIRST)), FEW)
    drive_by(tuner, lambda each: 1.0 if each == FIRST else 1.05, 200)
    state = tuner.state()
    assert state["lost"] > 0
    resumed = AutoByte(FIRST, Knowing(), FEW)
    resumed.load_state(state)
    assert resumed.state() == state
    passed = drive_by(resumed, lambda each: seconds_of(each, RATE), BEGIN_STEPS - 1, first=201)
    assert [change for _, change in passed if change is not None] == []
