import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.util.deadline import Deadline
from firmware_agent.clock import PHASES, Stopwatch
from firmware_agent.common.frames.frame_fields import PhaseSeconds


class HandClock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


steps = st.integers(0, 10**6).map(lambda n: n / 1024)  # sums of these are exact


@given(actions=st.lists(st.tuples(st.sampled_from([*PHASES, "mark"]), steps)))
def test_a_stopwatch_charges_laps_to_their_phase_and_marks_to_nothing(actions: list[tuple[str, float]]) -> None:
    clock = HandClock()
    watch = Stopwatch(clock)
    for action, seconds in actions:
        clock.seconds += seconds
        watch.mark() if action == "mark" else watch.lap(action)
    want = {phase: sum(seconds for action, seconds in actions if action == phase) for phase in PHASES}
    assert watch.take() == PhaseSeconds(**want)
    assert watch.take() == PhaseSeconds()


def test_taking_does_not_charge_and_does_not_mark() -> None:
    clock = HandClock()
    watch = Stopwatch(clock)
    clock.seconds += 1
    assert watch.take().total == 0
    clock.seconds += 2
    watch.lap("forward")
    assert watch.take() == PhaseSeconds(forward=3.0)


def test_an_unknown_phase_is_an_error() -> None:
    with pytest.raises(KeyError):
        Stopwatch(HandClock()).lap("sleep")


def test_the_phases_are_those_of_the_wire() -> None:
    assert PhaseSeconds.__struct_fields__ == PHASES


@given(seconds=steps, passed=st.lists(steps, max_size=6))
def test_a_deadline_counts_down_to_zero_and_expires_with_it(seconds: float, passed: list[float]) -> None:
    clock = HandClock()
    deadline = Deadline(seconds, clock)
    for step in passed:
        clock.seconds += step
    assert deadline.left_seconds == max(0.0, seconds - sum(passed))
    assert deadline.expired == (sum(passed) >= seconds)
    assert deadline.seconds == seconds
