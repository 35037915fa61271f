"""The simulation, its traces, its oracle and the baselines, on a small array."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_lab.bench.training.tuning_baselines import LoadBalanced, Policy, Proportional, Static
from csd_lab.bench.training.tuning_simulation import Scenario, oracle, simulate, wait
from csd_lab.simulate.slowdown_traces import SlowdownProcess, SlowdownTrace, draw_traces
from firmware_agent.common.errors import ConfigurationError
from host.core.tuning.batch_tuner import Floats
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.allocation import Allocator
from host.policies.batching.forecast import PRIOR_STEPS, Drifts, Durations
from host.policies.batching.hypertune_rule import Retuner
from host.policies.batching.retune_rules import RetuneRules
from tests.support.examples import examples

BATCHES = np.arange(1.0, 201.0)
DRIVE = SpeedTable("drive", 0.5 * BATCHES)
HOST = SpeedTable("host", 0.1 * BATCHES)
TABLES = [DRIVE, DRIVE, DRIVE, HOST]
PLAN = np.array([16, 16, 16, 80])
STEPS, SYNC = 300, 0.2
TRACE_PROCESS = SlowdownProcess(steps=STEPS, devices=4, mean_gap_steps=40, drift_steps=(10, 30))
SCENARIO = Scenario(TABLES, PLAN, SYNC, 1.0)
NAMES = ("static", "hypertune", "lb_bsp", "proportional")


def make(name: str, rows: int) -> Policy:
    if name == "static":
        return Static(TABLES, PLAN, rows)
    if name == "hypertune":
        return Retuner(TABLES, PLAN, RetuneRules(cost_steps=1.0), STEPS, SYNC, rows)
    if name == "lb_bsp":
        return LoadBalanced(TABLES, PLAN, rows, dead_band=0.1, memory=0.0)
    return Proportional(TABLES, PLAN, rows, dead_band=0.1, memory=0.0, gain=0.8)


def trace(slowdowns: Floats) -> SlowdownTrace:
    return SlowdownTrace(slowdowns, np.ones_like(slowdowns), 0)


def quiet(steps: int = STEPS) -> Floats:
    return np.ones((steps, 4))


@given(st.integers(0, 10**6))
@settings(max_examples=examples(30), deadline=None)
def test_traces_keep_their_bounds_and_repeat(seed: int) -> None:
    (first, second) = draw_traces(seed, 0, 2, TRACE_PROCESS)
    (again,) = draw_traces(seed, 1, 1, TRACE_PROCESS)
    assert np.array_equal(second.slowdowns, again.slowdowns, equal_nan=True)
    assert np.array_equal(second.noise, again.noise)
    for one in (first, second):
        assert one.slowdowns.shape == one.noise.shape == (STEPS, 4)
        alive = ~np.isnan(one.slowdowns)
        assert alive.any(axis=1).all()
        # A blip on a slowed device multiplies.
        assert (one.slowdowns[alive] >= 1).all()
        assert (one.slowdowns[alive] <= 1 / (1 - 0.9) ** 3 + 1e-9).all()


@pytest.mark.slow
def test_traces_have_so_many_changes_and_such_losses() -> None:
    trace_process = SlowdownProcess(blip_gap_steps=np.inf, drift=0.0)
    traces = draw_traces(0, 0, 100, trace_process)
    assert np.mean([one.changes for one in traces]) == pytest.approx(20, rel=0.1)
    # First steps of a change lie in between; all others are speeds of 1 or of a loss that was drawn.
    ends = np.array([one.slowdowns[-1] for one in traces])
    losses = 1 - 1 / ends[ends > 1]
    assert losses.min() > 0.2 - 1e-9
    assert losses.max() < 0.9 + 1e-9
    assert losses.mean() == pytest.approx(0.55, abs=0.05)
    assert np.isnan(ends).any()
    with pytest.raises(ConfigurationError, match="no shares of a speed"):
        SlowdownProcess(most_loss=1.0)


def test_drifts_are_lines_of_the_speed() -> None:
    trace_process = SlowdownProcess(blip_gap_steps=np.inf, drift=1.0, death=0.0, rejoin=0.0, recovery=0.0, noise=0.0)
    speeds = 1 / draw_traces(3, 0, 1, trace_process)[0].slowdowns
    steps = np.abs(np.diff(speeds, axis=0))
    # From 1 to 0.1 in 20 steps is the steepest.
    assert 0 < steps.max() <= 0.9 / 20 + 1e-9
    assert (steps > 0).sum() > 100


@pytest.mark.slow
@given(st.integers(0, 10**6), st.sampled_from(NAMES[:2]), st.sampled_from([None, 1.25, 2.0]), st.booleans())
@settings(max_examples=examples(30), deadline=None)
def test_the_oracle_is_an_upper_bound_of_every_step(
    seed: int, name: str, straggler_factor: float | None, stops: bool
) -> None:
    """Of batches none of which is larger than the plan's."""
    (one,) = draw_traces(seed, 0, 1, TRACE_PROCESS)
    records, seconds = oracle(SCENARIO, one)
    policy, allocator = make(name, 1), Allocator(TABLES, SYNC)
    for step in range(0, STEPS, 7):
        slowdowns, dead = np.nan_to_num(one.slowdowns[step], nan=1.0), np.isnan(one.slowdowns[step])
        generator = np.random.default_rng([seed, step])
        batches = np.where(dead, 0, generator.integers(0, PLAN + 1))
        assert allocator.rate(batches, slowdowns) <= records[step] / seconds[step] * (1 + 1e-9)
    outcome = simulate(SCENARIO, [one], policy, straggler_factor, stops=stops)
    assert (records / seconds).max() >= outcome.rates[0]
    assert outcome.seconds[0] > outcome.retune_seconds[0] >= 0


@pytest.mark.parametrize("name", NAMES)
def test_in_quiet_weather_all_are_as_good_as_the_oracle(name: str) -> None:
    records, seconds = oracle(SCENARIO, trace(quiet()))
    outcome = simulate(SCENARIO, [trace(quiet())], make(name, 1), 1.25, stops=False)
    assert outcome.rates[0] == pytest.approx(records.sum() / seconds.sum())
    assert outcome.retunes[0] == outcome.dropped[0] == 0


@pytest.mark.parametrize("name", NAMES[1:])
def test_all_that_adapt_beat_static_batches_in_bad_weather(name: str) -> None:
    traces = draw_traces(0, 0, 8, TRACE_PROCESS)
    static = simulate(SCENARIO, traces, make("static", 8))
    assert (simulate(SCENARIO, traces, make(name, 8)).rates > static.rates).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_traces_do_not_know_of_each_other(name: str) -> None:
    traces = draw_traces(5, 0, 3, TRACE_PROCESS)
    together = simulate(SCENARIO, traces, make(name, 3), 1.5, stops=False)
    for row, one in enumerate(traces):
        alone = simulate(SCENARIO, [one], make(name, 1), 1.5, stops=False)
        assert alone.rates[0] == pytest.approx(together.rates[row])
        assert alone.retunes[0] == together.retunes[row]


def test_a_sudden_loss_costs_the_window_and_one_step() -> None:
    slowdowns = quiet(100)
    slowdowns[50:, 0] = 4.0
    outcome = simulate(SCENARIO, [trace(slowdowns)], make("hypertune", 1))
    step = DRIVE.seconds(16)
    # 3 steps of 4 times the length, and the retune's.
    expected = 50 * (step + SYNC) + 4 * (4 * step + SYNC) + 47 * (step + SYNC)
    assert outcome.seconds[0] == pytest.approx(expected)
    assert outcome.retunes[0] == 1
    assert outcome.retune_seconds[0] == pytest.approx(4 * step + SYNC)
    free = simulate(SCENARIO, [trace(slowdowns)], make("hypertune", 1), charged=False)
    assert free.seconds[0] == pytest.approx(expected - 4 * step - SYNC)


def test_a_late_device_is_not_waited_for_and_observed_when_it_ends() -> None:
    slowdowns = quiet(20)
    slowdowns[9, 0] = 4.0
    step = DRIVE.seconds(16)
    for stops, absent in ((True, 1), (False, 2)):
        outcome = simulate(SCENARIO, [trace(slowdowns)], make("static", 1), 1.5, stops=stops)
        longest = np.array([step] * 19 + [1.5 * step])
        assert outcome.seconds[0] == pytest.approx((longest + SYNC).sum())
        # Three eighths done at the deadline: it computes on through the next step, and is back after that.
        assert outcome.records[0] == 20 * PLAN.sum() - absent * 16
        assert outcome.dropped[0] == 16


def test_the_deadline_waits_for_half_of_the_records() -> None:
    batches = np.array([[10, 10, 10, 31]])
    expected = np.full((1, 4), 1.0)
    for seconds, length, late in (
        ([1.0, 1.0, 1.2, 1.0], 1.2, []),
        ([1.0, 1.0, 2.0, 1.0], 1.25, [2]),
        ([1.0, 1.0, 1.0, 3.0], 3.0, []),
        ([9.0, 9.0, 9.0, 3.0], 3.0, [0, 1, 2]),
    ):
        waited, who = wait(np.array([seconds]), batches, expected, 1.25)
        assert waited[0] == pytest.approx(length)
        assert np.flatnonzero(who[0]).tolist() == late
        everyone, nobody = wait(np.array([seconds]), batches, expected, None)
        assert everyone[0] == max(seconds)
        assert not nobody.any()


def test_a_dead_device_and_one_that_is_back() -> None:
    slowdowns = quiet(60)
    slowdowns[20:40, 1] = np.nan
    for name in NAMES:
        outcome = simulate(SCENARIO, [trace(slowdowns)], make(name, 1), 1.25, stops=False)
        kept = name in ("lb_bsp", "proportional")
        # What keeps the global batch deals the records of the dead device out after the step in which it died.
        assert outcome.records[0] == 60 * PLAN.sum() - (1 if kept else 20) * 16
    static = make("static", 1)
    static.leave(np.array([[False, True, False, False]]))
    assert static.batches.tolist() == [[16, 0, 16, 80]]


@given(st.lists(st.floats(0.2, 20), min_size=4, max_size=4), st.sampled_from(NAMES[2:]))
@settings(deadline=None)
def test_balancing_keeps_the_global_batch(slowdowns: list[float], name: str) -> None:
    policy, allocator = make(name, 1), Allocator(TABLES, SYNC)
    for step in range(1, 30):
        policy.observe(step, allocator.table_seconds(policy.batches) * slowdowns)
        assert policy.batches.sum() == PLAN.sum()
        assert (policy.batches >= 1).all()
        assert (policy.batches <= 200).all()
    seconds = allocator.table_seconds(policy.batches)[0] * slowdowns
    # No slower than the plan, but for whole records.
    assert seconds.max() <= max(allocator.table_seconds(PLAN) * slowdowns) * 1.07


@pytest.mark.slow
@given(st.lists(st.floats(1, 30), min_size=4, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4))
@settings(deadline=None, max_examples=examples(50))
def test_the_best_target_is_the_best_of_all_targets(slowdowns: list[float], alive: list[bool]) -> None:
    allocator, slow, caps = Allocator(TABLES, SYNC), np.array(slowdowns), np.where(alive, PLAN, 0)
    found = allocator.rate(allocator.fill(allocator.best_target(slow, caps), slow, caps), slow)
    targets = np.concatenate([table.step_seconds * own for table, own in zip(TABLES, slowdowns, strict=True)])
    assert found == pytest.approx(
        max(allocator.rate(allocator.fill(float(target), slow, caps), slow) for target in targets), rel=1e-9
    )


@given(st.floats(0.01, 100), st.floats(1, 20))
def test_a_target_is_filled_to_the_last_record_that_fits(target: float, slowdown: float) -> None:
    slow = np.full(4, slowdown)
    allocator = Allocator(TABLES, SYNC)
    batches = allocator.fill(target, slow, PLAN)
    for table, batch, cap in zip(TABLES, batches, PLAN, strict=True):
        assert 0 <= batch <= cap
        assert slowdown * table.seconds(int(batch)) <= target * (1 + 1e-8)
        assert batch == cap or slowdown * table.seconds(int(batch) + 1) > target


def test_lengths_of_disturbances_are_learnt_from_those_that_were() -> None:
    durations = Durations(1)
    yes, no = np.array([[True]]), np.array([[False]])
    assert durations.expected_steps(0, True) == durations.expected_steps(0, False) == PRIOR_STEPS
    for _ in range(50):
        durations.observe(no, yes, yes)
        for _ in range(8):
            durations.observe(yes, yes, yes)
        durations.observe(yes, no, yes)
    assert durations.expected_steps(0, True) == pytest.approx(9, rel=0.2)


def test_only_a_level_that_rises_again_alike_is_a_drift() -> None:
    def leads(rises: list[tuple[int, float]]) -> list[float]:
        drifts, found = Drifts((1, 1)), []
        for step, rise in rises:
            drifts.observe(step, np.array([[rise != 0]]), np.array([[rise]]))
            found.append(float(drifts.lead[0, 0]))
        return found

    assert leads([(10, 0.1), (20, 0.1), (30, -0.1)]) == pytest.approx([0, 0.24, 0])
    assert leads([(10, 0.7), (20, 0.02)]) == [0, 0]
    assert leads([(10, 0.1), (60, 0.1)]) == [0, 0]
    assert leads([(10, 0.1), (20, 0.1), (60, 0.0), (61, 0.0)]) == pytest.approx([0, 0.24, 0.24, 0])
