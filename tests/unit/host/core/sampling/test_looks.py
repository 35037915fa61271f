"""Looks: how much of a step they are, how often at a whole one, and what they see."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.sampling.looks import LookKind, Looks
from host.core.sampling.sampled_steps import SampledSteps
from host.core.sampling.strata import ROUND_STAGES, STAGES, STEADY, Stratum, StratumSamples, find_level, fits

LEVELS = st.floats(0.2, 0.9) | st.floats(1.15, 5.0)


def steady(records: int, level: int = 0) -> Stratum:
    return Stratum(records, records, 0, STEADY, level)


def samples_of(*totals: float) -> StratumSamples:
    samples = StratumSamples()
    for total in totals:
        samples.add(PhaseSeconds(forward=total))
    return samples


COUNTED = {steady(8, level): samples_of(*[1.0 + 0.01 * level] * 3) for level in (0, 1)}


@given(st.integers(1, 512), st.floats(1e-4, 10.0), st.floats(0.2, 0.5), st.floats(1e-4, 10.0))
def test_a_look_is_as_short_as_a_competing_task_allows(
    records: int, seconds: float, forward: float, later: float
) -> None:
    looks, phases = Looks(), PhaseSeconds(forward=forward * seconds, backward=(1 - forward) * seconds)
    look = looks.choose(steady(records), phases)
    whole = phases.total / records <= 0.008
    assert look.timing == ("whole" if whole else "forward")
    assert 1 <= look.records <= records
    # 5 ms of a step, however many records it has.
    fixed, part = (0.005, phases.total) if whole else (0.0, phases.forward)
    of_record = max(0.0, part - fixed) / records
    assert fixed + look.records * of_record >= 0.008 * (1 - 1e-9) or look.records == records
    assert fixed + (look.records - 2) * of_record < 0.008
    assert look.timing == "forward" or look.records % 2 or look.records == records
    assert looks.choose(steady(records), PhaseSeconds(forward=later)) == look


@given(st.integers(1, 16), st.floats(1e-4, 1.0))
def test_a_look_that_fails_has_three_records_and_then_all(records: int, seconds: float) -> None:
    looks, stratum, phases = Looks(), steady(records), PhaseSeconds(forward=seconds)
    counts = [looks.choose(stratum, phases).records]
    while counts[-1] < records:
        looks.take_more(stratum)
        counts.append(looks.choose(stratum, phases).records)
    assert counts == sorted(set(counts))
    assert set(counts[1:]) <= {3, records}


@given(st.integers(0, 400), st.booleans())
def test_looks_at_whole_steps_come_ever_more_seldom(steps: int, young: bool) -> None:
    looks, counted, whole = Looks(), samples_of(0.02, 0.02), 0
    look = looks.choose(steady(8), counted.mean)
    assert look == LookKind(3, "whole")
    if not young:
        for _ in STAGES:
            assert not looks.add(steady(8), PhaseSeconds(forward=9.0), 0.0, current=True, counted=COUNTED)
    for _ in range(steps):
        planned = looks.plan(steady(8), counted, 2)
        if not planned:
            whole += 1
            counted.add(PhaseSeconds(forward=0.02))
        for each in planned:
            assert each == look
            assert not looks.add(steady(8), PhaseSeconds(forward=0.01), 0.0, current=True, counted=COUNTED)
    assert math.log2(1 + steps) - 3 <= whole <= 1 + math.log2(1 + steps)


def test_the_first_looks_of_a_level_that_is_close_to_another_are_taken_as_they_are() -> None:
    looks = Looks()
    looks.choose(steady(8), PhaseSeconds(forward=0.01))
    for level, seconds in ((0, 0.00800), (1, 0.00825)):
        for _ in range(len(STAGES) + 6):
            assert not looks.add(steady(8, level), PhaseSeconds(forward=seconds), 0.0, current=True, counted=COUNTED)
        assert looks.samples[steady(8, level)].count >= 6


def test_a_look_at_a_level_that_is_left_says_nothing() -> None:
    looks = Looks()
    looks.choose(steady(8), PhaseSeconds(forward=1.0))
    seconds = [1.0] * (len(STAGES) + 4)
    assert not any(
        looks.add(steady(8), PhaseSeconds(forward=each), 0.0, current=True, counted=COUNTED) for each in seconds
    )
    assert looks.add(steady(8), PhaseSeconds(forward=2.0), 0.0, current=True, counted=COUNTED)
    assert not looks.add(steady(8), PhaseSeconds(forward=2.0), 0.0, current=False, counted=COUNTED)
    looks.taken.clear()
    assert not looks.add(steady(8), PhaseSeconds(forward=2.0), 0.0, current=True, counted=COUNTED)


@given(LEVELS, st.integers(0, 1000))
def test_steps_that_scatter_hide_no_return_to_an_earlier_level(level: float, seed: int) -> None:
    """Beside a task steps take `level` times as long, give or take a tenth; then they are what they were."""
    drawn = level * np.random.default_rng(seed).normal(1.0, 0.1, 12)
    samples = {steady(8): samples_of(*[1.0] * 4), steady(8, 1): samples_of(*drawn)}
    before = PhaseSeconds(forward=1.0)
    if not fits(samples, steady(8, 1), before, 0.0):
        assert find_level(samples, steady(8, 1), [before, before], 0.0) == 0
    else:  # only where it is no rare step beside the task either
        own = samples[steady(8, 1)]
        assert abs(own.mean.total - 1.0) < 3 * own.deviation * own.mean.total


@given(LEVELS)
def test_what_fits_no_level_is_a_new_one(level: float) -> None:
    samples = {steady(8): samples_of(1.0, 1.0), steady(8, 3): samples_of(10.0, 10.0)}
    step = PhaseSeconds(forward=level)
    assert not fits(samples, steady(8), step, 0.0)
    assert find_level(samples, steady(8), [step, step], 0.0) == 4


def test_a_look_that_does_not_fit_has_a_whole_step_counted() -> None:
    sampled = SampledSteps()
    begun = {"a": steady(8)}
    sampled.looks.choose(steady(8), PhaseSeconds(forward=1.0))
    for _ in range(6):
        sampled.begin_step("a", 8, 8, 0)
        sampled.count("a", steady(8), PhaseSeconds(forward=1.0))
        sampled.count_look("a", steady(8), PhaseSeconds(forward=0.2))
    assert sampled.choose(7, begun) == []
    sampled.count_look("a", steady(8), PhaseSeconds(forward=0.3))
    assert sampled.choose(8, begun) == ["a"]
    sampled.count("a", steady(8), PhaseSeconds(forward=1.0))  # it was an interrupt, which hides nothing later
    assert sampled.choose(9, begun) == []
    assert sampled.now("a", Stratum(8, 8, 0, STEADY, 0)).level == 0
    sampled.count_look("a", steady(8), PhaseSeconds(forward=0.25))
    assert sampled.choose(10, begun) == ["a"]


@pytest.mark.parametrize(
    ("steady_steps", "begun", "sure"), [(2, 4, True), (2, 5, False), (8, 40, True), (8, 60, False)]
)
def test_a_rounds_first_step_says_enough_once_steady_ones_are_known(steady_steps: int, begun: int, sure: bool) -> None:
    sampled = SampledSteps()
    first = Stratum(8, 8, 0, ROUND_STAGES[0], 0)
    for stratum, count in ((first.steady, steady_steps), (first, begun)):
        for _ in range(count):
            sampled.strata[stratum].add(PhaseSeconds(forward=1.0))
    assert sampled.is_sure(first) is sure
    assert not sampled.is_sure(first.steady)


@given(st.floats(1.6, 5.0), st.integers(0, 1), st.integers(2, 6))
def test_a_first_look_that_is_like_those_of_a_far_level_is_doubted_and_no_other(
    factor: float, known: int, few: int
) -> None:
    sampled, size = SampledSteps(), (8, 8)
    begun = sampled.begin_step("a", 8, 8, 0)._replace(stage=STEADY)
    for level, whole in ((0, 1.0), (1, factor)):
        sampled._devices["a"].levels[size] = level
        sampled.strata[begun._replace(level=level)] = samples_of(*[whole] * 3)
    sampled.looks.choose(begun, PhaseSeconds(forward=1.0))
    for number in range(len(STAGES) + few):
        sampled.looks.add(
            begun._replace(level=0), PhaseSeconds(forward=0.31 if number % 2 else 0.29), 0.0, True, COUNTED
        )
    sampled.taken[0][size] = len(STAGES)
    there = begun._replace(level=1)
    for number in range(known):
        sampled.count_look("a", there, PhaseSeconds(forward=0.3 * factor * (1.1 if number % 2 else 0.9)))
    assert there not in sampled._devices["a"].doubted
    sampled.count_look("a", there, PhaseSeconds(forward=0.3))
    assert there in sampled._devices["a"].doubted
    # Whole steps say that it is where it was thought to be: its looks are like those of the other level.
    for doubted in (True, False):
        sampled.count("a", there, PhaseSeconds(forward=factor))
        assert there not in sampled._devices["a"].doubted
        sampled.count_look("a", there, PhaseSeconds(forward=0.3))
        assert (there in sampled._devices["a"].doubted) is doubted
