import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import MAX_DEVICES
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.frames.frame_fields import MAX_STEP_RECORDS
from host.config.sync_section import TuningSection
from host.core.tuning.batch_tuner import Floats
from host.core.tuning.speed_table import SpeedTable
from host.core.tuning.stannis_rule import BALANCED, WORTH_SHORTENING
from host.fleet.admission import MAX_RECORDS
from host.policies.batching.stannis import plan_batches, plan_shards, water_level
from tests.support.tuning import line, speed_tables

SETTINGS = st.builds(TuningSection, knee=st.floats(0, 0.5), margin=st.floats(0, 0.5))


@given(st.lists(speed_tables(), min_size=1, max_size=6), SETTINGS, st.floats(0, 10))
def test_nobody_takes_longer_than_the_pace_allows(
    tables: list[SpeedTable], settings: TuningSection, sync_seconds: float
) -> None:
    plan = plan_batches(tables, settings, sync_seconds)
    pace = plan.compute_seconds[plan.pace]
    assert plan.compute_seconds.max() == pace
    assert plan.step_seconds == pace + sync_seconds
    assert plan.records_per_second == pytest.approx(sum(plan.batches) / plan.step_seconds)
    slowest = max(range(len(tables)), key=lambda n: tables[n].seconds(tables[n].knee(settings.knee)))
    shares = np.array([1.0 if n == slowest else 1 - settings.margin for n in range(len(tables))])
    more = plan.batches > 1
    target = float(np.max((plan.compute_seconds / shares)[more], initial=0.0))
    for share, table, batch, seconds in zip(shares, tables, plan.batches, plan.compute_seconds, strict=True):
        assert seconds == table.seconds(int(batch))
        assert 1 <= batch <= table.largest_batch
        if batch < table.largest_batch:  # what the step has time for is computed
            assert table.seconds(int(batch) + 1) > share * target * (1 - 1e-9)


def all_steps(tables: list[SpeedTable], sync_seconds: float) -> tuple[Floats, Floats]:
    """Records and rates of a step of every length, whatever STANNIS looks at."""
    first = max(table.seconds(1) for table in tables)
    lengths = np.array(sorted({float(t) for table in tables for t in table.step_seconds if t >= first}))
    records = np.array([sum(table.largest_within(length) for table in tables) for length in lengths], np.float64)
    return records, records / (lengths + sync_seconds)


@given(st.lists(speed_tables(), min_size=1, max_size=5), st.floats(0, 0.5), st.floats(0, 10))
def test_no_step_with_as_few_records_is_faster(tables: list[SpeedTable], knee: float, sync_seconds: float) -> None:
    plan = plan_batches(tables, TuningSection(knee=knee), sync_seconds)
    records, rates = all_steps(tables, sync_seconds)
    best = float(np.max(rates[records <= plan.batches.sum()], initial=0.0))
    assert plan.records_per_second >= best / (1 + WORTH_SHORTENING) * (1 - 1e-9)


@given(st.lists(speed_tables(), min_size=1, max_size=5), st.floats(0, 0.5), st.floats(0, 10))
def test_where_memory_bounds_a_class_the_rate_is_what_the_knee_allows(
    tables: list[SpeedTable], knee: float, sync_seconds: float
) -> None:
    plan = plan_batches(tables, TuningSection(knee=knee), sync_seconds)
    if any(batch == table.largest_batch for batch, table in zip(plan.batches, tables, strict=True)):
        _, rates = all_steps(tables, sync_seconds)
        assert plan.records_per_second >= (1 - knee) * rates.max() * (1 - 1e-9)


def test_nobody_waits_for_the_slow_class_where_a_fast_one_is_at_its_limit() -> None:
    """The slow one's knee takes 40 s, the fast one has memory for 16 records, which take 2 s."""
    slow, fast = line("slow", 1.0, 1.0), line("fast", 0.0, 0.125, largest=16)
    plan = plan_batches([slow, fast], TuningSection())
    assert plan.batches.tolist() == [1, 16]
    assert plan.compute_seconds.tolist() == [2.0, 2.0]
    assert plan.bounded == ()


def test_a_slow_class_at_its_limit_does_not_keep_the_others_from_their_knee() -> None:
    """One record is all that the slow one holds; with the exchange the others gain by more than it has time for."""
    plan = plan_batches([line("slow", 1.0, 0.5, largest=1), line("fast", 0.0, 0.1)], TuningSection(), 20.0)
    best = max((1 + batch) / (max(1.5, 0.1 * batch) + 20.0) for batch in range(1, 513))
    assert plan.records_per_second >= 0.95 * best


def test_a_slow_batch_given_outright_stays_where_a_fast_class_is_at_its_limit() -> None:
    tables = [line("slow", 1.0, 1.0), line("fast", 0.01, 0.01, largest=16)]
    plan = plan_batches(tables, TuningSection(slow_batch=20))
    assert plan.batches.tolist() == [20, 16]
    assert plan.bounded == (1,)


@given(st.lists(st.floats(1, 30), min_size=1, max_size=5), st.floats(0, 5), st.floats(1e-3, 1))
def test_devices_that_differ_in_speed_alone_finish_together(speeds: list[float], fixed: float, slope: float) -> None:
    tables = [line(f"x{speed}", fixed * slope / speed, slope / speed, 8192) for speed in speeds]
    plan = plan_batches(tables, TuningSection())
    # A whole record is the least that can be added; the slow batch is the only one that is chosen freely.
    assert plan.imbalance <= max(BALANCED, 1 / plan.batches.min())
    assert plan.batches[plan.pace] >= tables[plan.pace].knee(0.05)
    # Everybody at the knee or above: 95 % of what all could do at best.
    assert plan.records_per_second >= 0.95 * 0.95 * sum(
        (np.arange(1, 8193) / table.step_seconds).max() for table in tables
    ) * (1 - plan.imbalance)


def test_small_batches_grow_until_whole_records_fit() -> None:
    slow, fast = line("slow", 0.0, 1.0), line("fast", 0.0, 1 / 1.3)
    plan = plan_batches([slow, fast, slow], TuningSection())
    # One record each would leave the fast one 23 % early; 7 take 1 % longer than 9, fewer never fit so well.
    assert plan.batches.tolist() == [7, 9, 7]
    assert plan.imbalance <= BALANCED
    given_outright = plan_batches([slow, fast], TuningSection(slow_batch=1))
    assert given_outright.batches.tolist() == [1, 1]
    assert given_outright.imbalance == pytest.approx(1 - 1 / 1.3)


def test_a_jump_beyond_the_knee_is_not_crossed() -> None:
    seconds = np.where(np.arange(1, 65) < 16, 0.1, 0.15) * np.arange(1, 65) + 0.05
    plan = plan_batches([SpeedTable("jumps", seconds), line("fast", 0.001, 0.09)], TuningSection())
    assert plan.batches[0] < 16


def test_a_device_whose_largest_batch_is_done_early_is_reported() -> None:
    """Not even one record of the slow one is done by then."""
    plan = plan_batches([line("slow", 1.0, 1.0), line("fast", 0.01, 0.01, largest=16)], TuningSection())
    assert plan.bounded == (1,)
    assert plan.batches.tolist() == [1, 16]


@given(st.floats(1.06, 1.5), st.floats(5, 100))
def test_an_exchange_that_takes_long_is_worth_a_slower_rate_alone(jump: float, sync: float) -> None:
    """Two records take more than twice as long as one: alone one is best, behind a long exchange 16 are."""
    table = SpeedTable("csd", np.array([1.0, *(jump * batch for batch in range(2, 17))]), 0.0)
    assert plan_batches([table], TuningSection()).batches.tolist() == [1]
    plan = plan_batches([table], TuningSection(), sync)
    batches = np.arange(1, 17)
    best = (batches / (table.step_seconds + sync)).max()
    assert plan.records_per_second >= 0.95 * best


def test_a_slow_batch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a batch of 65 is not between 0 and 64"):
        plan_batches([line("slow", 1.0, 1.0, largest=64)], TuningSection(slow_batch=65))
    with pytest.raises(ConfigurationError, match="no device"):
        plan_batches([], TuningSection())


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf"), -1.0])
def test_a_speed_of_zero_or_nan_makes_no_table(bad: float) -> None:
    with pytest.raises(ConfigurationError, match="csd: seconds per step must be positive numbers"):
        SpeedTable("csd", np.array([bad, 1.0]))


DEVICES = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 2000)), min_size=1, max_size=8)


@given(DEVICES, st.integers(0, 5000))
def test_feasible_shards_give_equal_steps_and_each_record_once(devices: list[tuple[int, int]], public: int) -> None:
    b, p = np.array(devices).T
    records = int(p.sum()) + public
    if records == 0:
        with pytest.raises(ConfigurationError, match="no record"):
            plan_shards(b, p, public, "repeat")
        return
    b = np.where(p + public > 0, b, 0)
    k = records / b.sum()
    for overflow in ("repeat", "subsample"):
        plan = plan_shards(b, p, public, overflow)  # type: ignore[arg-type]
        assert (plan.overflowing == ()) == all(pi * b.sum() <= records * bi for pi, bi in zip(p, b, strict=True))
        if plan.overflowing:
            continue
        assert plan.steps == -(-records // b.sum())
        assert plan.public.sum() == public
        assert np.all(plan.public >= 0)
        assert np.all(np.abs(p + plan.public - k * b) < 1)
        assert np.array_equal(plan.private_seen, plan.private)
        assert plan.action == ""


@given(DEVICES, st.integers(0, 5000))
def test_infeasible_shards_say_what_was_done(devices: list[tuple[int, int]], public: int) -> None:
    b, p = np.array(devices).T
    b = np.where(p + public > 0, b, 0)
    if not (p * b.sum() > (p.sum() + public) * b).any():
        return
    repeat = plan_shards(b, p, public, "repeat")
    assert repeat.steps == max(-(-pi // bi) for pi, bi in zip(p, b, strict=True) if bi)
    assert np.array_equal(repeat.private_seen, repeat.private)
    assert np.all(repeat.public >= 0)
    if public:
        assert np.all(p + repeat.public <= repeat.steps * b)
        assert repeat.public.sum() - repeat.repeated == public
        assert str(repeat.repeated) in repeat.action
    subsample = plan_shards(b, p, public, "subsample")
    assert subsample.public.sum() == public
    assert subsample.repeated == 0
    left_out = subsample.private - subsample.private_seen
    assert np.all(p + subsample.public - left_out <= subsample.steps * b)
    assert set(np.flatnonzero(left_out)) <= set(subsample.overflowing)
    assert str(left_out.sum()) in subsample.action
    assert subsample.steps <= repeat.steps


@given(st.integers(0, MAX_RECORDS), st.integers(1, MAX_STEP_RECORDS), st.sampled_from([2, MAX_DEVICES]))
def test_the_level_is_exact_at_the_most_that_drives_may_say(records: int, batch: int, devices: int) -> None:
    p, b = [records] + [MAX_RECORDS] * (devices - 1), [MAX_STEP_RECORDS] * (devices - 1) + [batch]
    total, per, inside = water_level(np.array(b), np.array(p), MAX_RECORDS)
    below = [number for number in range(devices) if inside[number]]
    assert (total, per) == (sum(p[n] for n in below) + MAX_RECORDS, sum(b[n] for n in below))
    assert all((p[n] * per <= total * b[n]) == (n in below) for n in range(devices))
