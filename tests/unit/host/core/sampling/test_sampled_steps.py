"""Strata of steps: what is counted, what the counted steps say of the others, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.sampling.sampled_steps import (
    CHECK_STEPS,
    MOST_STEPS,
    STEADY_STEPS,
    SampledSteps,
    round_sizes,
)
from host.core.sampling.sampling_record import SamplingRecord, add_sampling
from host.core.sampling.strata import STEADY, Stratum, StratumSamples

Truth = Callable[[int, str, Stratum], float]
"""Step number, device and stratum -> seconds of the device's part."""


def seconds_of(total: float) -> PhaseSeconds:
    return PhaseSeconds(forward=0.3 * total, backward=0.7 * total)


def run_steps(
    sampled: SampledSteps, sizes: Mapping[str, int], steps: int, truth: Truth, weight: int = 0, first: int = 1
) -> tuple[list[dict[str, float]], int]:
    """Take synchronous steps of devices with so many records each, as a counter does.

    Returns:
        The seconds of each step, device by device, and how many parts were counted.
    """
    taken, counted_parts = [], 0
    for step in range(first, first + steps):
        begun = {device: sampled.begin_step(device, size, size, weight) for device, size in sizes.items()}
        counted: dict[str, PhaseSeconds] = {}
        chosen = sampled.choose(step, begun)
        while chosen:
            for device in chosen:
                counted[device] = seconds_of(truth(step, device, begun[device]))
                sampled.count(device, begun[device], counted[device])
                counted_parts += 1
            chosen = [device for device, stratum in begun.items() if sampled.mean(stratum) is None][:1]
        result = {}
        for device, stratum in begun.items():
            own = sampled.take(
                device, [stratum._replace(level=sampled.level(device, stratum.size))], counted.get(device)
            )
            assert own is not None
            result[device] = own.total
        taken.append(result)
    return taken, counted_parts


SIZES = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 64), min_size=1)


@given(SIZES, st.integers(1, 60))
def test_steps_that_take_what_their_size_takes_are_known_exactly(sizes: dict[str, int], steps: int) -> None:
    sampled = SampledSteps()
    taken, counted = run_steps(sampled, sizes, steps, lambda step, device, stratum: 0.01 * stratum.records)
    for result in taken:
        assert result == pytest.approx({device: 0.01 * size for device, size in sizes.items()})
    record = sampled.record()
    assert record.steps == steps * len(sizes)
    assert record.counted_steps == counted
    assert record.not_counted == []
    assert record.start_share == pytest.approx(0.0, abs=1e-12)
    assert 0.0 < record.error < 0.0035


@given(SIZES, st.integers(40, 200))
def test_regular_steps_are_counted_a_few_times_a_size_and_then_once_in_a_while(
    sizes: dict[str, int], steps: int
) -> None:
    _, counted = run_steps(SampledSteps(), sizes, steps, lambda step, device, stratum: 0.01 * stratum.records)
    # First and second steps of a size, its steady ones, and checks.
    assert counted <= len(set(sizes.values())) * (2 + STEADY_STEPS + 1) + steps // CHECK_STEPS


@given(st.integers(1, 200), st.integers(1, 5), st.integers(1, 40))
def test_a_round_of_whole_passes_has_every_record_once_a_pass(samples: int, epochs: int, batch: int) -> None:
    sizes = round_sizes(samples, epochs, batch)
    assert sum(sizes) == samples * epochs
    assert len(sizes) == epochs * math.ceil(samples / batch)
    assert max(sizes) <= batch


def test_the_first_steps_of_a_size_are_strata_of_their_own() -> None:
    """A step of 5 s that begins the job stands for those of the others, and not for later ones."""
    sampled = SampledSteps()

    def truth(step: int, device: str, stratum: Stratum) -> float:
        return {1: 5.0, 2: 1.2}.get(step, 1.0)

    taken, _ = run_steps(sampled, {"a": 8, "b": 8, "c": 8}, 20, truth)
    assert [result["c"] for result in taken[:3]] == [5.0, 1.2, 1.0]
    assert all(result == dict.fromkeys("abc", 1.0) for result in taken[2:])
    record = sampled.record()
    # 4.2 s of each drive's 24.2 s; of that a third in either direction is what another machine may take.
    assert record.start_share == pytest.approx(4.2 / 24.2, rel=0.35)
    assert 0.03 < record.error < 0.08


@pytest.mark.parametrize(("noise", "most"), [(0.001, 0.004), (0.03, 0.03)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(noise: float, most: float) -> None:
    held, errors = 0, []
    for seed in range(200):
        # Every part takes its own time, whether it is counted or not.
        drawn = 1.0 + noise * np.random.default_rng(seed).standard_normal((81, 2))

        def truth(step: int, device: str, _: Stratum, drawn: npt.NDArray[np.float64] = drawn) -> float:
            return float(drawn[step, "ab".index(device)])

        sampled = SampledSteps()
        taken, _ = run_steps(sampled, {"a": 8, "b": 8}, 80, truth)
        error = sampled.record().error
        errors.append(error)
        true = drawn[1:, 0].sum()
        held += abs(sum(result["a"] for result in taken) - true) <= error * true
    assert held >= 0.93 * 200
    assert np.median(errors) < most


@given(st.floats(0.1, 0.9) | st.floats(1.1, 4.0), st.integers(10, 40))
def test_a_change_that_nobody_was_told_of_is_seen_within_the_time_of_a_check(factor: float, change: int) -> None:
    sampled = SampledSteps()

    def truth(step: int, device: str, stratum: Stratum) -> float:
        return factor if step >= change else 1.0

    sizes = {"a": 8}
    run_steps(sampled, sizes, change - 1, truth)
    assert sampled.level("a", (8, 8)) == 0
    taken, _ = run_steps(sampled, sizes, 2 * CHECK_STEPS, truth, first=change)
    assert sampled.level("a", (8, 8)) == 1
    seen = [result["a"] == pytest.approx(factor) for result in taken]
    assert all(seen[CHECK_STEPS - 1 :])


def test_a_doubt_is_of_its_stratum_alone() -> None:
    """A competing task that comes meanwhile is no proof of a change that nobody was told of."""
    sampled = SampledSteps()
    for weight in (0, 100):
        run_steps(sampled, {"a": 8}, 12, lambda step, device, stratum: 1.0 + stratum.weight, weight)
    idle, beside = (Stratum(8, 8, weight, STEADY, 0) for weight in (0, 100))
    for stratum in (idle, beside):
        assert sampled.count("a", stratum, seconds_of(1.5 * (1.0 + stratum.weight))).level == 0
    assert sampled.level("a", (8, 8)) == 0
    assert sampled.count("a", idle, seconds_of(1.5)).level == 1


def test_when_one_drive_changes_the_others_are_looked_at_when_it_is_sure() -> None:
    sampled = SampledSteps()
    sizes = {"a": 8, "b": 8, "c": 8}

    def truth(step: int, device: str, stratum: Stratum) -> float:
        return 2.0 if step > 20 and device in "ab" else 1.0

    taken, _ = run_steps(sampled, sizes, 40, truth)
    first = next(number for number, result in enumerate(taken) if 2.0 in result.values())
    assert first <= 20 + CHECK_STEPS * len(sizes)
    assert all(result == {"a": 2.0, "b": 2.0, "c": 1.0} for result in taken[first + 3 :])


def test_a_competing_task_is_a_stratum_of_its_own() -> None:
    sampled = SampledSteps()
    run_steps(sampled, {"a": 8}, 20, lambda *_: 1.0)
    taken, counted = run_steps(sampled, {"a": 8}, 10, lambda *_: 2.0, weight=100, first=21)
    assert counted >= STEADY_STEPS
    assert [result["a"] for result in taken] == [2.0] * 10
    assert sampled.level("a", (8, 8)) == 0


def test_steps_that_differ_are_counted_more_often_and_told_of() -> None:
    sampled, generator = SampledSteps(), np.random.default_rng(0)
    stratum = Stratum(8, 8, 0, STEADY, 0)
    run_steps(sampled, {"a": 8}, 60, lambda *_: float(generator.uniform(0.5, 1.5)))
    assert MOST_STEPS <= sampled.strata[stratum].count < 60
    assert sampled.irregular(stratum)
    assert sampled.record().error > 0.03


def test_a_drive_that_has_no_counted_step_is_named_and_nothing_is_invented() -> None:
    sampled = SampledSteps()
    strata = sampled.begin_round("a", [8, 8], 0)
    assert sampled.take("a", strata) is None
    assert sampled.record().not_counted == ["a"]


def test_what_begins_a_round_is_known_of_other_sizes_by_its_difference() -> None:
    sampled = SampledSteps()
    for _ in range(3):
        sampled.begin_round("a", [8, 8, 8, 8], 0)
        sampled.begin_round("b", [4, 4], 0)
    for size, total in ((8, 1.0), (4, 0.6)):
        for _ in range(4):
            sampled.count("a", Stratum(size, size, 0, STEADY, 0), seconds_of(total))
    sampled.count("a", Stratum(8, 8, 0, "first of a round", 0), seconds_of(1.1))
    other = sampled.mean(Stratum(4, 4, 0, "first of a round", 0))
    assert other is not None
    assert other.total == pytest.approx(0.7)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40))
def test_samples_have_the_mean_and_the_deviation_of_what_was_added(totals: list[float]) -> None:
    samples = StratumSamples()
    for total in totals:
        samples.add(seconds_of(total))
    assert samples.mean.total == pytest.approx(np.mean(totals))
    if len(totals) > 1:
        assert samples.deviation == pytest.approx(np.std(totals, ddof=1) / np.mean(totals), abs=1e-9)


@given(st.lists(st.tuples(st.floats(0.0, 0.5), st.floats(0.1, 100.0)), min_size=1, max_size=10))
def test_the_error_of_a_run_lies_between_those_of_its_rounds(rounds: list[tuple[float, float]]) -> None:
    records = [
        (SamplingRecord(counted_steps=1, steps=2, error=error, start_share=0.0), seconds) for error, seconds in rounds
    ]
    whole = add_sampling(records)
    assert whole is not None
    assert whole.counted_steps == len(rounds)
    assert min(e for e, _ in rounds) - 1e-12 <= whole.error <= max(e for e, _ in rounds) + 1e-12
    assert add_sampling([]) is None
