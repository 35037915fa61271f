"""The budget of retunes: what grants some, what they cost, and that there is an end."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.hypertune_rule import Retuner
from host.policies.batching.retune_budget import (
    BACK_OFF,
    FASTER,
    LAST,
    MIN_GAIN,
    MOST,
    REST_STEPS,
    SLOWER,
    RetuneBudget,
)
from host.policies.batching.retune_budget import (
    CLEAR as CLEARS,
)
from host.policies.batching.retune_rules import RetuneRules
from tests.support.examples import examples

CLEAR = CLEARS[0]
NONE = np.zeros((1, 3), dtype=np.bool_)
FIRST = np.array([[True, False, False]])


def see(budget: RetuneBudget, level: float, early: bool = False) -> None:
    budget.observe(FIRST, np.array([[level, 0.0, 0.0]]), FIRST & early, NONE)


def test_a_device_that_becomes_clearly_slower_grants_more_than_one_that_becomes_faster() -> None:
    budget = RetuneBudget((1, 3))
    assert budget.left[0] == SLOWER
    see(budget, CLEAR)
    assert budget.left[0] == MOST
    budget.left[0] = 0
    see(budget, 0.0)
    assert budget.left[0] == FASTER


def test_at_the_beginning_there_are_two_beside_the_way_back_for_tables_that_are_off() -> None:
    budget = RetuneBudget((1, 3))
    for _ in range(2):
        assert budget.least_gain(0, FIRST[0], returns=False, home=False) < np.inf
        budget.spend(0, FIRST[0], np.zeros((1, 3)))
    assert budget.least_gain(0, FIRST[0], returns=False, home=False) == np.inf
    assert budget.least_gain(0, FIRST[0], returns=True, home=True) < np.inf


def test_small_changes_grant_nothing_until_they_add_up() -> None:
    budget = RetuneBudget((1, 3))
    for share in (0.5, 0.9):
        see(budget, share * CLEAR)
        assert budget.left[0] == SLOWER
    see(budget, 1.1 * CLEAR)
    assert budget.left[0] == MOST


def test_what_a_new_batch_shows_is_no_change_and_the_next_is_counted_from_there() -> None:
    budget = RetuneBudget((1, 3))
    see(budget, 2 * CLEAR, early=True)
    assert budget.left[0] == SLOWER
    see(budget, 2.5 * CLEAR)
    assert budget.left[0] == SLOWER
    see(budget, 3.01 * CLEAR)
    assert budget.left[0] == MOST


def test_each_retune_has_to_win_more_than_the_one_before() -> None:
    budget = RetuneBudget((2, 3))
    see_both = np.array([[1.0, 0, 0], [0.0, 0, 0]])
    budget.observe(see_both > 0, see_both, np.zeros((2, 3), dtype=np.bool_), np.zeros((2, 3), dtype=np.bool_))
    least = []
    for _ in range(5):
        left = budget.left[0]
        least.append(budget.least_gain(0, FIRST[0], returns=False, home=False))
        assert budget.least_gain(0, FIRST[0], returns=True, home=False) == (MIN_GAIN if left >= LAST else np.inf)
        home = budget.least_gain(0, FIRST[0], returns=True, home=True)
        assert home == pytest.approx(MIN_GAIN / BACK_OFF if left >= FASTER else np.inf)
        budget.spend(0, FIRST[0], see_both)
    # The last one is for the way back.
    factors = np.array([1, BACK_OFF, BACK_OFF**2, np.inf, np.inf])
    assert least == pytest.approx((MIN_GAIN * factors).tolist())
    assert budget.left.tolist() == [0, SLOWER]  # the other array's is its own


def test_a_trial_that_failed_grants_two_and_the_end_of_a_clear_drift_one() -> None:
    budget = RetuneBudget((1, 3))
    budget.left[0] = 0
    budget.grant(0)
    assert budget.left[0] == LAST
    budget.left[0] = 0
    budget.observe(NONE, np.zeros((1, 3)), NONE, FIRST)
    assert budget.left[0] < FASTER
    see(budget, CLEAR)
    budget.left[0] = 0
    budget.observe(NONE, np.zeros((1, 3)), NONE, FIRST)
    assert budget.left[0] == FASTER


def test_the_way_back_is_of_a_device_that_was_clearly_slow_and_it_is_gone_once() -> None:
    budget = RetuneBudget((1, 3))
    budget.left[0] = 0
    see(budget, -2 * CLEAR)  # it never was slow
    assert not budget.faster.any()
    assert budget.left[0] < FASTER
    see(budget, 3 * CLEAR)
    budget.left[0] = 0
    see(budget, CLEAR)
    assert budget.faster.tolist() == [[True, False, False]]
    assert budget.left[0] == FASTER
    assert budget.least_gain(0, FIRST[0], returns=True, home=False) == pytest.approx(MIN_GAIN / BACK_OFF)
    assert budget.least_gain(0, ~FIRST[0], returns=True, home=False) == np.inf
    assert budget.least_gain(0, FIRST[0], returns=False, home=False) == np.inf
    budget.spend(0, ~FIRST[0], np.zeros((1, 3)))  # of others
    assert budget.faster[0, 0]
    budget.spend(0, FIRST[0], np.zeros((1, 3)))
    assert not budget.faster.any()


def test_a_long_quiet_time_begins_anew_with_each_retune() -> None:
    budget = RetuneBudget((1, 3))
    budget.left[0] = 1.9
    budget.spend(0, FIRST[0], np.zeros((1, 3)))
    assert budget.left[0] == 0


def test_after_a_long_quiet_time_there_is_one_to_go_with_the_way_back_and_no_more() -> None:
    budget = RetuneBudget((1, 3))
    budget.left[0] = 0
    for _ in range(REST_STEPS - 1):
        budget.observe(NONE, np.zeros((1, 3)), NONE, NONE)
    assert 0.9 < budget.left[0] < 1
    for _ in range(3 * REST_STEPS):
        budget.observe(NONE, np.zeros((1, 3)), NONE, NONE)
    assert budget.left[0] == pytest.approx(LAST, abs=0.01)


def test_an_array_whose_levels_wander_needs_a_larger_change() -> None:
    budget = RetuneBudget((1, 3))
    for number in range(40):
        see(budget, 0.15 * (number % 2))
    see(budget, 1.5 * CLEAR)
    assert budget.left[0] == SLOWER
    see(budget, 4 * CLEAR)
    assert budget.left[0] == MOST


@given(st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=60), st.floats(0.0, MIN_GAIN * BACK_OFF**MOST))
@settings(max_examples=examples(50), deadline=None)
def test_no_more_small_retunes_than_clear_changes_grant(levels: list[float], gain: float) -> None:
    """Whatever devices do: of retunes that win little there are `SLOWER` per clear change at most."""
    budget, retunes, clear = RetuneBudget((1, 3)), 0, 0
    for level in np.cumsum(levels):
        before = budget.reference.copy()
        see(budget, float(level))
        clear += int((budget.reference != before).any())
        if gain > budget.least_gain(0, FIRST[0], returns=True, home=False):
            budget.spend(0, NONE[0], np.zeros((1, 3)))
            retunes += 1
    assert retunes <= LAST + SLOWER * clear


@pytest.mark.parametrize("left", [0.0, 1.0, 4.0])
def test_whoever_is_well_again_gets_its_records_beside_one_that_is_not(left: float) -> None:
    """Whatever is left of the budget: two drives are slowed; then one is as before, the other 1.8 times as slow."""
    table = SpeedTable("drive", 0.05 + 0.01 * np.arange(1, 65))
    retuner = Retuner([table] * 4, np.array([32] * 4), RetuneRules(), total_steps=4000)
    generator = np.random.default_rng(0)
    for step in range(1, 500):
        slowdowns = np.array([3.0, 3, 1, 1] if 60 <= step < 200 else [1.0, 1.8, 1, 1] if step >= 200 else [1.0] * 4)
        noise = np.exp(0.005 * generator.standard_normal(4))
        if step == 199:
            retuner._disturbances.budget.left[0] = left
        seconds = np.array([table.seconds(max(1, int(batch))) for batch in retuner.batches[0]])
        retuner.observe(step, (seconds * slowdowns * noise)[None])
    assert retuner.batches[0, [0, 2, 3]].tolist() == [32, 32, 32]


def test_a_small_slowdown_beside_a_lasting_one_ends_too() -> None:
    table = SpeedTable("drive", 0.05 + 0.01 * np.arange(1, 65))
    retuner = Retuner([table] * 4, np.array([32] * 4), RetuneRules(), total_steps=4000)
    generator, least = np.random.default_rng(0), 32
    for step in range(1, 1500):
        slowdowns = np.array([1.15 if 200 <= step < 400 else 1.0, 1.8 if step >= 60 else 1.0, 1, 1])
        seconds = np.array([table.seconds(max(1, int(batch))) for batch in retuner.batches[0]])
        retuner.observe(step, (seconds * slowdowns * np.exp(0.005 * generator.standard_normal(4)))[None])
        least = min(least, int(retuner.batches[0, 0]))
    assert least < 32 == retuner.batches[0, 0]


def test_what_is_about_to_change_goes_along_with_what_has_changed() -> None:
    """One drive becomes a little slower, and a step later another one much: one retune, with the second change."""
    table = SpeedTable("drive", 0.05 + 0.01 * np.arange(1, 65))
    retuner = Retuner([table] * 4, np.array([32] * 4), RetuneRules(), total_steps=4000)
    generator, retunes = np.random.default_rng(0), list[int]()
    for step in range(1, 70):
        slowdowns = np.array([1.18 if step >= 60 else 1.0, 3.0 if step >= 61 else 1.0, 1, 1])
        seconds = np.array([table.seconds(int(batch)) for batch in retuner.batches[0]])
        noisy = seconds * slowdowns * np.exp(0.005 * generator.standard_normal(4))
        retunes += [step] * len(retuner.observe(step, noisy[None]))
    assert retunes == [63]
    assert (retuner.batches[0, :2] < 32).all()
