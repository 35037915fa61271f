"""The change detector: a blip is no change, what lasts is one, and noise is neither."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.policies.batching.detector import MORE_STEPS, Detector, Floats
from tests.support.examples import examples

THRESHOLD, WINDOW = 0.08, 3
LOSSES = st.floats(0.25, 0.95)


def run(detector: Detector, ratios: Floats, noise: float = 0.0, seed: int = 0) -> list[tuple[int, bool]]:
    """Observe ratios, (steps,) or (steps, devices); return each step with a change, and whether it was a jump."""
    generator, found = np.random.default_rng(seed), []
    for step, ratio in enumerate(ratios, 1):
        changes = detector.observe(np.log(ratio) + noise * generator.standard_normal(detector.level.shape))
        if np.any(changes.any):
            found.append((step, bool(changes.jumped.any())))
    return found


def settled(noise: float, seed: int, steps: int = 40) -> Detector:
    """A detector that knows the noise: it has seen no jump, though once in a while noise looks like a small offset."""
    detector = Detector((1,), THRESHOLD, WINDOW)
    assert not [step for step, jumped in run(detector, np.ones(steps), noise, seed) if jumped]
    return detector


@given(LOSSES, st.floats(0, 0.02), st.integers(0, 1000))
def test_a_sustained_loss_is_seen_when_the_window_is_full_and_measured_well(
    loss: float, noise: float, seed: int
) -> None:
    detector = settled(noise, seed)
    assert run(detector, np.full(WINDOW, 1 / (1 - loss)), noise, seed + 1) == [(WINDOW, True)]
    # The mean of two steps: six standard errors, beyond which no draw will lie.
    assert abs(detector.level[0] + np.log(1 - loss)) <= 1e-12 + 6 * noise / np.sqrt(WINDOW - 1)


@given(LOSSES, st.floats(0, 1), st.integers(1, 6))
def test_a_first_step_that_is_disturbed_in_part_does_not_bias_the_level(loss: float, part: float, window: int) -> None:
    detector = Detector((1,), THRESHOLD, window)
    slow = 1 / (1 - loss)
    found = run(detector, np.array([1 + part * (slow - 1)] + [slow] * window))
    assert found[0][0] <= window + 1
    if window > 1:
        assert detector.level[0] == pytest.approx(np.log(slow))


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 2), st.integers(16, 60)), max_size=8),
    st.sampled_from([0.0, 0.01]),
)
def test_a_blip_shorter_than_the_window_changes_nothing(blips: list[tuple[float, int, int]], noise: float) -> None:
    detector = settled(noise, 1)
    ratios = [ratio for size, length, gap in blips for ratio in [size] * length + [1.0] * gap]
    assert not run(detector, np.array(ratios), noise)
    assert detector.level[0] == 0


@given(st.integers(1, 8), LOSSES)
def test_so_many_deviations_are_needed_as_the_window_is_long(window: int, loss: float) -> None:
    detector = Detector((1,), THRESHOLD, window)
    assert not run(detector, np.full(window - 1, 1 / (1 - loss)))
    assert run(detector, np.full(1, 1 / (1 - loss))) == [(1, True)]


@pytest.mark.slow
@given(st.floats(0.001, 0.02), st.sampled_from([0.0, 0.01]))
@settings(max_examples=examples(30))
def test_a_slow_drift_is_followed(slope: float, noise: float) -> None:
    detector = settled(noise, 2)
    steps = int(0.6 / slope)
    log_ratio = np.minimum(slope * np.arange(steps + 120), 0.6)
    run(detector, np.exp(log_ratio), noise)
    assert abs(detector.level[0] - 0.6) < 0.02 + 3 * noise


@pytest.mark.slow
def test_noise_raises_no_alarm_whatever_its_size() -> None:
    """37,000 devices for 300 steps each; the docstring says 5e-9 per device and step for a jump."""
    for noise in (0.01, 0.05):
        detector, generator = Detector((37_000,), THRESHOLD, WINDOW), np.random.default_rng(0)
        jumps = moves = 0
        for step in range(300):
            changes = detector.observe(noise * generator.standard_normal(37_000))
            jumps += int(changes.jumped.sum()) * (step >= 60)
            moves += int(changes.moved.sum())
        # Noise that is larger than it was thought to be alarms before it is known; beliefs may move a little.
        assert jumps <= (0 if noise == 0.01 else 37_000 * 240 * 1e-5)
        assert moves / (37_000 * 300) < 2e-3 * (noise == 0.05) + 1e-6
        assert np.abs(detector.level).max() < 0.25


@pytest.mark.slow
def test_a_constant_error_of_the_table_becomes_the_level_once() -> None:
    detector = Detector((1,), THRESHOLD, WINDOW)
    found = run(detector, np.full(2000, 1.05), 0.01)
    assert len(found) <= 3
    assert found[-1][0] < 200
    assert detector.level[0] == pytest.approx(np.log(1.05), abs=0.01)


def test_the_noise_is_learnt_and_moves_the_threshold() -> None:
    detector = settled(0.01, 0, 200)
    assert detector.noise[0] == pytest.approx(0.01, rel=0.5)
    assert detector.thresholds[0] == pytest.approx(np.log1p(THRESHOLD))
    run(detector, np.ones(300), 0.06)
    assert detector.noise[0] == pytest.approx(0.06, rel=0.5)
    assert detector.thresholds[0] > 0.1


@given(st.lists(st.sampled_from([0.5, 1.0, 1.02, 1.3, 2.0, float("nan")]), max_size=60), st.integers(2, 4))
def test_devices_do_not_know_of_each_other(ratios: list[float], devices: int) -> None:
    alone, many = Detector((1,), THRESHOLD, WINDOW), Detector((2, devices), THRESHOLD, WINDOW)
    generator = np.random.default_rng(0)
    for ratio in ratios:
        others = generator.uniform(-1, 1, (2, devices))
        others[1, 0] = np.log(ratio)
        alone.observe(np.log([ratio]))
        many.observe(others)
    assert many.level[1, 0] == alone.level[0]


@given(st.lists(st.sampled_from([1.0, 1.05, 1.5]), min_size=1, max_size=30), st.integers(0, 20))
def test_a_step_without_an_observation_is_no_step(ratios: list[float], where: int) -> None:
    plain, holed = Detector((1,), THRESHOLD, WINDOW), Detector((1,), THRESHOLD, WINDOW)
    run(plain, np.array(ratios))
    run(holed, np.array([*ratios[:where], np.nan, *ratios[where:]]))
    assert holed.level == pytest.approx(plain.level)


@given(st.lists(st.sampled_from([1.0, 1.05, 1.5]), min_size=1, max_size=30), st.integers(0, 30), st.booleans())
def test_a_step_that_is_passed_over_is_no_step(ratios: list[float], where: int, lost: bool) -> None:
    """Whatever it took, and also if nothing came of the step after the one that was asked for."""
    plain, passing = Detector((1,), THRESHOLD, WINDOW), Detector((1,), THRESHOLD, WINDOW)
    run(plain, np.array(ratios))
    run(passing, np.array(ratios[:where]))
    passing.skip_next(np.array([True]))
    run(passing, np.array([*([np.nan] if lost else []), 9.0, *ratios[where:]]))
    seen = [{name: own for name, own in each.state().items() if name != "agreed"} for each in (passing, plain)]
    assert seen[0] == seen[1]


def test_a_blip_among_steps_that_are_a_little_off_does_not_make_the_level() -> None:
    detector = Detector((1,), THRESHOLD, WINDOW)
    run(detector, np.array([1.0] * 20 + [1.1, 5.0, 1.1]))
    assert 0.09 < detector.level[0] < 0.2
    burst = Detector((1,), THRESHOLD, WINDOW)
    run(burst, np.array([1.0] * 20 + [1.1, 5.0, 5.0]))
    assert burst.level[0] == pytest.approx(np.log(5.0))


def test_a_jump_after_steps_that_are_a_little_off_is_seen_as_a_jump() -> None:
    """The window of small jumps would be full in the jump's second step; what is seen is the jump, at its height."""
    detector = Detector((1,), THRESHOLD, WINDOW)
    for ratio in [0.04] * (WINDOW + MORE_STEPS - 2) + [1.0] * 2:
        assert not detector.observe(np.array([ratio])).jumped.any()
    assert detector.observe(np.array([1.0])).jumped.all()
    assert detector.level[0] == pytest.approx(1.0)


def test_a_device_agrees_again_once_it_was_seen_with_its_batch() -> None:
    detector = Detector((1,), THRESHOLD, WINDOW)
    run(detector, np.array([1.0]))
    assert detector.agreed[0]
    detector.skip_next(np.array([True]))
    run(detector, np.array([1.0, 2.0]))  # passed over; off
    assert not detector.agreed[0]
    run(detector, np.array([1.0]))
    assert detector.agreed[0]


@pytest.mark.parametrize(("then", "agrees"), [(0.5, True), (1.9, False)])
def test_who_is_slower_than_believed_and_then_faster_has_changed_since_its_batch(then: float, agrees: bool) -> None:
    detector = Detector((1,), THRESHOLD, WINDOW)
    run(detector, np.array([1.4, then]))
    assert detector.agreed[0] == agrees


@given(st.lists(st.sampled_from([1.0, 1.05, 1.5, 0.7, float("nan")]), max_size=40), st.integers(0, 40))
def test_its_state_goes_through_json(ratios: list[float], where: int) -> None:
    plain, stopped = Detector((2,), THRESHOLD, WINDOW), Detector((2,), THRESHOLD, WINDOW)
    run(plain, np.array(ratios), 0.01)
    run(stopped, np.array(ratios[:where]), 0.01)
    resumed = Detector((2,), THRESHOLD, WINDOW)
    resumed.load_state(json.loads(json.dumps(stopped.state(), allow_nan=False)))
    assert resumed.state() == stopped.state()
    if where >= len(ratios):
        assert resumed.state() == plain.state()
