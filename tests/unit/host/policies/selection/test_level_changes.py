"""Levels that change for good: a blip never does, whatever its length below the window; a change that stays always."""

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from host.policies.selection.level_changes import EXCHANGE, STEPS_FOR_GOOD, LevelChanges

factors = st.one_of(st.floats(1.25, 10), st.floats(0.1, 0.8))


@given(st.lists(st.floats(0.95, 1.05), min_size=60, max_size=60), st.integers(1, 12), st.integers(0, 60), factors)
def test_a_blip_of_12_steps_is_no_change(noise: list[float], length: int, at: int, factor: float) -> None:
    levels = LevelChanges()
    for step, each in enumerate(noise):
        levels.observe("a", 10, each * (factor if at <= step < at + length else 1.0), 1.0)
        assert levels.changed() == {}


@given(factors, st.integers(0, 40), st.integers(1, 50))
def test_a_change_that_stays_is_seen_once_it_has_held_and_by_its_own_steps_alone(
    factor: float, quiet: int, batch: int
) -> None:
    levels = LevelChanges()
    for step in range(quiet + STEPS_FOR_GOOD):
        levels.observe("a", batch, 0.1 * batch * (factor if step >= quiet else 1.0), 0.1 * batch)
        levels.observe("b", batch, 0.1 * batch, 0.1 * batch)
    changed = levels.changed()
    assert set(changed) == {"a"}
    assert all(math.isclose(seconds, 0.1 * batch * factor) for _, seconds in changed["a"])


def test_another_batch_is_no_change_and_a_drive_that_is_slow_at_it_is_one() -> None:
    """A record takes longer in a small batch than in a large one: what is expected is of the batch that was had."""
    levels = LevelChanges()
    for _ in range(STEPS_FOR_GOOD):
        levels.observe("a", 5, 1.0, 1.01)
        levels.observe("b", 5, 1.0, 0.5)
    assert set(levels.changed()) == {"b"}


def test_what_is_not_watched_or_returned_nothing_changes_nothing_and_state_goes_on() -> None:
    levels = LevelChanges()
    for records, seconds, expected in ((5, 1.0, 0.0), (0, 1.0, 1.0), (5, math.nan, 1.0), (5, 0.2, 0.5)):
        levels.observe("a", records, seconds, expected)
    assert levels.seen == {"a": [(5, 0.2, 0.5)]}
    assert msgspec.json.decode(msgspec.json.encode(levels), type=LevelChanges) == levels
    assert LevelChanges().seen == {}


@given(st.floats(1.5, 20), st.floats(0.2, 5), st.integers(5, 40))
def test_an_exchange_that_takes_longer_for_good_is_seen_and_other_computing_or_batches_are_not(
    factor: float, exchange: float, quiet: int
) -> None:
    levels, calm = LevelChanges(), LevelChanges()
    for step in range(quiet + STEPS_FOR_GOOD):
        compute = 1.0 + step % 3
        changed = exchange * (4 * factor if step >= quiet else 1.0)
        levels.observe_step({"a": 8}, 0.1 * compute, 0.1 * compute + changed)
        calm.observe_step({"a": 8}, compute, compute + exchange)
        calm.observe_step({"a": 8 + step}, compute, compute + changed)  # its usual ones are not known
    assert set(levels.changed()) == {EXCHANGE}
    assert calm.changed() == {}
    assert msgspec.json.decode(msgspec.json.encode(levels), type=LevelChanges) == levels
