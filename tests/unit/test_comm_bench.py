"""What bench comm makes of its runs: turns, intervals, predictions, the fit of the link."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.bench import comm_cases, comm_wall
from host.bench.comm_cases import CASES, FIFO, PRIORITY, RATIOS, Case, predict
from host.bench.comm_runs import CONFIDENCE, DROPPED_STEPS, Blocks, ratio_interval
from host.bench.comm_wall import Fit, fit_to

TURNS = st.builds(Blocks, st.just((FIFO, PRIORITY)), st.integers(DROPPED_STEPS + 1, 9), st.integers(1, 5))


@given(TURNS)
def test_each_schedule_has_as_many_steps_and_none_goes_first_always(turns: Blocks) -> None:
    steps = range(1, turns.total + 1)
    which = [turns.which(step) for step in steps]
    assert which.count(0) == which.count(1) == turns.steps * turns.blocks
    assert [turns.sending(step) for step in steps] == [turns.settings[place] for place in which]
    for pair in range(turns.blocks):
        first = turns.which(1 + 2 * pair * turns.steps)
        assert first == pair % 2


@given(TURNS)
def test_steps_behind_a_change_are_left_out(turns: Blocks) -> None:
    kept = turns.sort([float(step) for step in range(1, turns.total + 1)])
    for place, numbers in enumerate(kept):
        for number in map(int, numbers):
            near = range(number - DROPPED_STEPS, number + 1)
            assert all(step >= 1 and turns.which(step) == place for step in near)
    changes = sum(turns.which(step) != turns.which(step + 1) for step in range(1, turns.total))
    assert sum(map(len, kept)) == turns.total - (changes + 1) * DROPPED_STEPS - 1


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    held = 0
    for _ in range(2000):
        above, below = generator.normal(1.5, 0.1, 12), generator.normal(1.0, 0.05, 7)
        held += ratio_interval(above.tolist(), below.tolist()).holds(1.5)
    assert held / 2000 == pytest.approx(CONFIDENCE, abs=0.015)


@given(
    st.lists(st.floats(0.1, 10), min_size=2, max_size=20),
    st.lists(st.floats(0.1, 10), min_size=2, max_size=20),
    st.floats(0.01, 100),
)
def test_the_interval_is_of_a_ratio(above: list[float], below: list[float], scale: float) -> None:
    one = ratio_interval(above, below)
    assert one.low <= one.ratio <= one.high
    assert one.ratio == pytest.approx(statistics.fmean(above) / statistics.fmean(below))
    scaled = ratio_interval([scale * each for each in above], [scale * each for each in below])
    assert (scaled.low, scaled.high) == pytest.approx((one.low, one.high), rel=1e-6)
    turned = ratio_interval(below, above)
    assert (turned.low, turned.high) == pytest.approx((1 / one.high, 1 / one.low), rel=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_wire_over_compute_is_the_cases(case: Case) -> None:
    sent = sum(sum(layer.size_bytes for layer in part) for part in case.costs)
    computed = sum(layer.forward_seconds + layer.backward_seconds for layer in case.costs[0])
    assert sent / case.bytes_per_second / computed == pytest.approx(case.ratio)


def test_figures_are_the_extremes_of_the_cases() -> None:
    figures, samples = comm_cases.figures()
    gains = [sample["priority_over_fifo"] for sample in samples]
    assert len(gains) == len(CASES)
    assert (figures["priority_over_fifo_max"], figures["priority_over_fifo_min"]) == (max(gains), min(gains))
    assert figures["priority_over_fifo_min"] >= 1
    equal = [s["priority_seconds"] / comm_cases.COMPUTE_SECONDS for s in samples if s["wire_over_compute"] == 1]
    assert figures["over_lower_bound"] == pytest.approx(max(equal))
    assert min(equal) >= 1


def test_nobody_beats_the_lower_bound_by_a_better_link() -> None:
    for case in CASES:
        bound = max(1.0, case.ratio) * comm_cases.COMPUTE_SECONDS
        assert predict(case, case.link).priority_seconds >= bound * (1 - 1e-9)


@settings(max_examples=5, deadline=None)
@given(st.floats(0.8, 0.99), st.floats(0.001, 0.02))
def test_the_fit_finds_what_was_measured(share: float, step: float) -> None:
    truth = Fit(share, step)
    measured = [truth.predict(case, FIFO) for case in (comm_wall._SLOW, comm_wall._FAST)]
    found = fit_to(*measured)
    assert found.payload_share == pytest.approx(share, rel=1e-3)
    # Less than the messages behind the backward pass take cannot be told from them.
    assert found.step_seconds == pytest.approx(step, rel=0.02, abs=0.0025)
    assert [found.predict(case, FIFO) for case in (comm_wall._SLOW, comm_wall._FAST)] == pytest.approx(
        measured, rel=1e-3
    )


def test_the_link_is_fitted_on_no_case() -> None:
    for case in (comm_wall._SLOW, comm_wall._FAST):
        assert case not in CASES
        assert case.ratio not in RATIOS
