"""The world that HyperTune is judged in: its draws, its oracle, and how a tuner is driven."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_lab.bench.intervals import half_interval
from csd_lab.bench.training import hypertune_development_seeds, hypertune_final_seeds
from csd_lab.bench.training.bench_hypertune_world import play_case, summarise
from csd_lab.bench.training.hypertune_case import draw_case, oracle, play
from csd_lab.bench.training.hypertune_disturbances import Period, join_periods
from csd_lab.bench.training.hypertune_oracle import best_batches, rate_of
from csd_lab.bench.training.hypertune_ranges import KINDS, ArrayRanges, DisturbanceRanges, WorldRanges
from host.policies.batching.make import make_tuner
from tests.support.examples import examples

SMALL = WorldRanges(
    ArrayRanges(drives=(2, 4), drive_records=(16, 32), host_records=(64, 96), slow_batch=(2, 8)),
    DisturbanceRanges(
        count=(1, 2),
        quiet_steps=(20, 40),
        disturbed_steps=(30, 60),
        return_count=(2, 2),
        return_quiet_steps=(20, 30),
        return_disturbed_steps=(20, 30),
    ),
)


def test_final_seeds_are_none_that_the_rules_were_made_with() -> None:
    assert not set(hypertune_final_seeds.SEEDS) & set(hypertune_development_seeds.SEEDS)
    assert len(set(hypertune_final_seeds.SEEDS)) >= 10


@given(st.integers(0, 10**6), st.sampled_from(KINDS))
@settings(max_examples=examples(30), deadline=None)
def test_draws_keep_their_bounds_and_repeat(seed: int, kind: str) -> None:
    case, again = draw_case(seed, kind, SMALL), draw_case(seed, kind, SMALL)
    assert np.array_equal(case.course.factors, again.course.factors)
    assert case.arguments.batches.tolist() == again.arguments.batches.tolist()
    assert sum(period.steps for period in case.course.periods) == len(case.course.factors)
    assert [bool(period.disturbed) for period in case.course.periods][::2] == [False] * (
        len(case.course.periods) // 2 + 1
    )
    for period in case.course.periods:
        for number, (seconds, quiet) in enumerate(zip(period.seconds, case.array.seconds, strict=True)):
            assert (np.diff(seconds) >= 0).all()
            assert (seconds >= quiet * (1 - 1e-12)).all()
            assert np.array_equal(seconds, quiet) == (number not in period.disturbed) or kind == "bandwidth"
    if kind == "bandwidth":
        for period in case.course.periods:
            for device in period.disturbed:
                assert period.seconds[device][0] == pytest.approx(case.array.seconds[device][0])


@given(
    st.lists(st.lists(st.floats(0.05, 3), min_size=2, max_size=5), min_size=2, max_size=3),
    st.floats(0, 5),
    st.integers(1, 9),
)
@settings(max_examples=examples(100), deadline=None)
def test_without_noise_no_batches_are_better_than_the_oracles(
    steps: list[list[float]], exchange: float, most: int
) -> None:
    curves = tuple(np.cumsum(np.array(each)) for each in steps)
    largest = np.array([len(curve) for curve in curves])
    factors = np.ones((3, len(curves)))
    rate, batches = best_batches(Period(3, curves, ()), factors, exchange, most, largest)
    assert batches.sum() <= most
    assert rate == pytest.approx(rate_of(batches, curves, factors, exchange))
    for other in product(*(range(len(curve) + 1) for curve in curves)):
        if sum(other) <= most:
            assert rate_of(np.array(other), curves, factors, exchange) <= rate * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_tuner_keeps_the_global_batch_and_beats_batches_that_stay(kind: str) -> None:
    tuned, stayed = 0.0, 0.0
    for seed in range(3):
        case = draw_case(seed, kind, SMALL)
        rates = [rate for rate, _ in oracle(case)]
        own, static = play(case), play(case, partial(make_tuner, "stannis"))
        assert not static.retunes
        assert len(own.retunes_per_disturbance) == len(case.course.beginnings)
        assert own.retunes_before + sum(own.retunes_per_disturbance) == len(own.retunes)
        first = case.course.beginnings[0]
        assert own.retunes_before == sum(step < first for step, *_ in own.retunes)
        assert sum(own.period_records) <= case.records * len(case.course.factors)
        tuned, stayed = tuned + own.over(rates), stayed + static.over(rates)
    assert tuned > stayed


def test_the_oracle_over_itself_is_one() -> None:
    case = draw_case(1, "factor", SMALL)
    quiet = replace(case, course=replace(case.course, factors=np.ones_like(case.course.factors)))
    found = oracle(quiet)
    outcome = play(quiet, partial(make_tuner, "stannis"))
    seconds = [
        int(batches.sum()) * period.steps / rate
        for (rate, batches), (_, _, period) in zip(found, join_periods(quiet.course.periods), strict=True)
    ]
    records = [
        int(batches.sum()) * period.steps for (_, batches), period in zip(found, quiet.course.periods, strict=True)
    ]
    best = replace(outcome, period_records=tuple(map(float, records)), period_seconds=tuple(seconds))
    assert best.over([rate for rate, _ in found]) == pytest.approx(1)
    assert outcome.over([rate for rate, _ in found]) <= 1 + 1e-9


@given(
    st.lists(st.lists(st.floats(0.05, 3), min_size=2, max_size=5), min_size=2, max_size=3),
    st.floats(0, 5),
    st.floats(0.1, 9),
)
@settings(max_examples=examples(50), deadline=None)
def test_where_computing_draws_nothing_more_the_fewest_joules_are_the_highest_rate(
    steps: list[list[float]], exchange: float, waiting: float
) -> None:
    curves = tuple(np.cumsum(np.array(each)) for each in steps)
    largest = np.array([len(curve) for curve in curves])
    period, factors = Period(3, curves, ()), np.ones((3, len(curves)))
    rate, _ = best_batches(period, factors, exchange, 9, largest)
    per_joule, _ = best_batches(period, factors, exchange, 9, largest, (waiting, np.zeros(len(curves))))
    assert per_joule * waiting == pytest.approx(rate)


@pytest.mark.slow
def test_figures_are_of_all_kinds_and_have_an_interval() -> None:
    rows = [play_case((kind, seed), SMALL) for kind in KINDS for seed in (1, 2)]
    figures = summarise(rows)
    assert figures["worst"] <= figures["rate_over_oracle"] <= 1.02
    assert figures["rate_over_oracle_low"] < figures["rate_over_oracle"]
    assert figures["rate_over_oracle"] == pytest.approx(np.mean([figures[f"{kind}_over_oracle"] for kind in KINDS]))
    assert figures["static_over_oracle"] < figures["rate_over_oracle"]


def test_an_interval_is_students() -> None:
    values = list(np.random.default_rng(0).normal(3, 1, 25))
    assert half_interval(values) == pytest.approx(2.0638986 * np.std(values, ddof=1) / 5)
    assert half_interval([1.0]) == float("inf")
