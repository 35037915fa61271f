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
from host.core.sampling.looks import LOOK_STEPS, LookKind
from host.core.sampling.sampled_steps import (
    LEAST_STEPS,
    MOST_STEPS,
    SampledSteps,
    round_sizes,
)
from host.core.sampling.sampling_record import SamplingRecord, add_sampling
from host.core.sampling.strata import STEADY, Stratum, StratumSamples

# A change is seen in so many steps, where one drive trains alone.
NOTICE_STEPS = LOOK_STEPS + 1
Truth = Callable[[int, str, Stratum], float]
"""Step number, device and stratum -> seconds of the device's part."""


def seconds_of(total: float) -> PhaseSeconds:
    return PhaseSeconds(forward=0.3 * total, backward=0.7 * total)


def run_steps(
    sampled: SampledSteps,
    sizes: Mapping[str, int] | Callable[[int], Mapping[str, int]],
    steps: int,
    truth: Truth,
    weight: int = 0,
    first: int = 1,
) -> tuple[list[dict[str, float]], int]:
    """Take synchronous steps of devices with so many records each, as a counter does.

    Returns:
        The seconds of each step, device by device, and how many parts were counted.
    """
    taken, counted_parts = [], 0
    look: tuple[int, str, Stratum, list[LookKind], float] | None = None
    for step in range(first, first + steps):
        here = sizes(step) if callable(sizes) else sizes
        begun = {device: sampled.begin_step(device, size, size, weight) for device, size in here.items()}
        counted: dict[str, PhaseSeconds] = {}
        if look is not None and step > look[0]:
            _, device, stratum, looks, seconds = look
            look = None
            for _ in looks:
                sampled.count_look(device, stratum, seconds_of(seconds * 0.3))
            if not looks:
                sampled.count(device, stratum, seconds_of(seconds))
                counted_parts += 1
        chosen = sampled.choose(step, begun)
        while chosen:
            for device in chosen:
                said = seconds_of(truth(step, device, begun[device]))
                if sampled.count(device, begun[device], said).stage == begun[device].stage:
                    counted[device] = said
                counted_parts += 1
            chosen = sampled.choose_again(begun)
        if look is None and (due := sampled.look(step, begun)) is not None:
            device, looks = due
            look = step, device, sampled.now(device, begun[device]), looks, truth(step, device, begun[device])
        result = {}
        for device, stratum in begun.items():
            own = sampled.take(device, [sampled.now(device, stratum)], counted.get(device))
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
    # First and second steps of a size, its steady ones, and the looks at whole steps.
    whole = math.log2(1 + steps // LOOK_STEPS)
    assert counted <= len(set(sizes.values())) * (2 + LEAST_STEPS + 1 + whole) + 1


@pytest.mark.parametrize(("weight", "counted"), [(0, 1), (100, 2)])
def test_one_step_of_a_size_with_few_of_the_seconds_is_enough_where_no_task_competes(weight: int, counted: int) -> None:
    sampled = SampledSteps()

    def sizes(step: int) -> dict[str, int]:
        return {"a": 1 if step % 10 == 5 else 64}

    run_steps(sampled, sizes, 60, lambda step, device, stratum: 0.01 * stratum.records, weight)
    assert sampled.strata[Stratum(1, 1, weight, STEADY, 0)].count == counted


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
        return {0: 5.0, 1: 1.2}.get(sampled.taken[0].total(), 1.0)

    taken, _ = run_steps(sampled, {"a": 8, "b": 8, "c": 8}, 20, truth)
    assert [result["c"] for result in taken[:3]] == pytest.approx([5.0, 1.2, 1.0])
    assert all(result == pytest.approx(dict.fromkeys("abc", 1.0)) for result in taken[2:])
    record = sampled.record()
    # 4.2 s of each drive's 24.2 s; of that two thirds in either direction is what another machine may take.
    assert record.start_share == pytest.approx(4.2 / 24.2, rel=0.01)
    assert 0.1 < record.error < 0.15


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


@given(st.floats(0.1, 0.9) | st.floats(1.1, 4.0), st.integers(30, 60))
def test_a_change_that_nobody_was_told_of_is_seen_within_the_time_of_a_check(factor: float, change: int) -> None:
    sampled = SampledSteps()

    def truth(step: int, device: str, stratum: Stratum) -> float:
        return factor if step >= change else 1.0

    sizes = {"a": 8}
    run_steps(sampled, sizes, change - 1, truth)
    assert sampled.now("a", Stratum(8, 8, 0, STEADY, 0)).level == 0
    taken, _ = run_steps(sampled, sizes, 2 * NOTICE_STEPS, truth, first=change)
    assert sampled.now("a", Stratum(8, 8, 0, STEADY, 0)).level == 1
    seen = [result["a"] == pytest.approx(factor) for result in taken]
    assert all(seen[NOTICE_STEPS - 1 :])


def test_a_doubt_is_of_its_stratum_alone() -> None:
    """A competing task that comes meanwhile is no proof of a change that nobody was told of."""
    sampled = SampledSteps()
    for weight in (0, 100):
        run_steps(sampled, {"a": 8}, 12, lambda step, device, stratum: 1.0 + stratum.weight, weight)
    idle, beside = (Stratum(8, 8, weight, STEADY, 0) for weight in (0, 100))
    for stratum in (idle, beside):
        assert sampled.count("a", stratum, seconds_of(1.5 * (1.0 + stratum.weight))).level == 0
    assert sampled.now("a", Stratum(8, 8, 0, STEADY, 0)).level == 0
    assert sampled.count("a", idle, seconds_of(1.5)).level == 1


@given(st.integers(1, NOTICE_STEPS))
def test_steps_of_a_new_size_put_no_check_off(place: int) -> None:
    """The last batch of an epoch is smaller; to count it says nothing of the others."""
    sampled = SampledSteps()

    def sizes(step: int) -> dict[str, int]:
        return {"a": 5 if step == 30 + place else 8}

    run_steps(sampled, sizes, 30 + NOTICE_STEPS + 1, lambda step, *_: 1.3 if step > 30 else 1.0)
    assert sampled.now("a", Stratum(8, 8, 0, STEADY, 0)).level == 1


def test_when_one_drive_changes_the_others_are_looked_at_when_it_is_sure() -> None:
    sampled = SampledSteps()
    sizes = {"a": 8, "b": 8, "c": 8}

    def truth(step: int, device: str, stratum: Stratum) -> float:
        return 2.0 if step > 20 and device in "ab" else 1.0

    taken, _ = run_steps(sampled, sizes, 40, truth)
    first = next(number for number, result in enumerate(taken) if 2.0 in result.values())
    assert first <= 20 + NOTICE_STEPS * len(sizes)
    assert all(result == pytest.approx({"a": 2.0, "b": 2.0, "c": 1.0}) for result in taken[first + 3 :])


def test_a_competing_task_is_a_stratum_of_its_own() -> None:
    sampled = SampledSteps()
    run_steps(sampled, {"a": 8}, 20, lambda *_: 1.0)
    taken, counted = run_steps(sampled, {"a": 8}, 10, lambda *_: 2.0, weight=100, first=21)
    assert counted >= LEAST_STEPS
    assert [result["a"] for result in taken] == pytest.approx([2.0] * 10)
    assert sampled.now("a", Stratum(8, 8, 0, STEADY, 0)).level == 0


@given(st.floats(0.9, 1.1), st.integers(60, 100))
def test_what_a_young_machine_takes_is_forgotten(young: float, steps: int) -> None:
    """A machine's third to fifth step take another time than later ones: as few drives' steps are told that of them."""
    sampled = SampledSteps()

    def truth(step: int, device: str, stratum: Stratum) -> float:
        return young if sampled.taken[0].total() < 5 else 1.0

    taken, _ = run_steps(sampled, {"a": 8}, steps, truth)
    assert [result["a"] for result in taken[40:]] == pytest.approx([1.0] * (steps - 40))


@given(st.integers(1, 8), st.integers(9, 64), st.floats(0.5, 5.0), st.booleans())
def test_the_first_step_of_all_takes_longer_by_as_much_whatever_its_size(
    small: int, large: int, excess: float, small_first: bool
) -> None:
    sampled = SampledSteps()

    def truth(step: int, device: str, stratum: Stratum) -> float:
        return 0.01 * stratum.records + (0.0 if sampled.taken[0].total() else excess)

    sizes = {"a": small, "b": large} if small_first else {"a": large, "b": small}
    taken, _ = run_steps(sampled, sizes, 10, truth)
    assert taken[0] == pytest.approx({device: 0.01 * size + excess for device, size in sizes.items()})
    for result in taken[1:]:
        assert result == pytest.approx({device: 0.01 * size for device, size in sizes.items()})


@given(st.data())
def test_a_step_is_looked_at_again_only_so_often(data: st.DataObject) -> None:
    """However sizes, tasks, restarts and outliers fall, a step comes to an end, and all its seconds are known."""
    machines = data.draw(st.integers(1, 2))
    sampled = SampledSteps(machines)
    for step in range(1, data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            sampled.restart(data.draw(st.integers(0, machines - 1)))
        begun = {
            device: sampled.begin_step(device, size, size, data.draw(st.sampled_from([0, 100])))
            for device, size in data.draw(
                st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1)
            ).items()
        }
        chosen, times = sampled.choose(step, begun), 0
        while chosen:
            for number, device in enumerate(chosen):
                seconds = seconds_of(data.draw(st.sampled_from([1.0, 1.0, 2.0])))
                sampled.count(device, begun[device], seconds, number % machines)
            chosen, times = sampled.choose_again(begun), times + 1
            assert times < 40
        for device, stratum in begun.items():
            assert sampled.take(device, [sampled.now(device, stratum)]) is not None


def test_a_drive_whose_steps_scatter_does_not_widen_the_interval_of_another() -> None:
    sampled, generator = SampledSteps(), np.random.default_rng(0)
    for step in range(1, 60):
        begun = {
            device: sampled.begin_step(device, 8, 8, weight) for device, weight in (("quiet", 0), ("disturbed", 100))
        }
        for device in sampled.choose(step, begun):
            sampled.count(
                device, begun[device], seconds_of(float(generator.uniform(0.7, 1.3)) if begun[device].weight else 1.0)
            )
        for device, stratum in begun.items():
            sampled.take(device, [stratum])
    record = sampled.record()
    assert set(record.drives) == {"quiet", "disturbed"}
    assert record.drives["quiet"].error < 0.005
    assert record.drives["disturbed"].error > 0.03
    assert record.error == record.drives["disturbed"].error


def test_steps_of_a_drive_that_were_counted_are_another_machines_nevertheless() -> None:
    sampled, generator = SampledSteps(), np.random.default_rng(1)
    for _ in range(39):
        begun = sampled.begin_step("a", 8, 8, 100)
        seconds = seconds_of(float(generator.uniform(0.7, 1.3)))
        sampled.count("a", begun, seconds)
        sampled.take("a", [begun], seconds)
    # Differences of two uniform draws of 0.6 s: 39 steps of a standard deviation of 0.245 s.
    assert sampled.record().drives["a"].error == pytest.approx(1.96 * 0.245 / math.sqrt(39), rel=0.35)


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


@given(st.lists(st.floats(0.1, 10.0) | st.floats(0.999, 1.001), min_size=1, max_size=60))
def test_samples_have_the_mean_and_the_deviation_of_the_later_ones(totals: list[float]) -> None:
    samples = StratumSamples()
    for total in totals:
        samples.add(seconds_of(total))
    later = totals[-len(samples.later) :]
    assert samples.count == len(totals)
    assert [each.total for each in samples.later] == pytest.approx(later)
    assert min(len(totals), 3) <= len(later) <= 20
    regular = len(later) < 2 or np.std(later, ddof=1) < 0.0099 * np.mean(later)
    left_out = round(len(later) / 4) if regular else 0
    middle = np.mean(sorted(later)[left_out : len(later) - left_out])
    if regular or np.std(later, ddof=1) > 0.0101 * np.mean(later):
        assert samples.mean.total == pytest.approx(middle)
    if len(later) > 1:
        squares = np.square(np.array(later) - samples.mean.total).sum()
        assert samples.deviation == pytest.approx((squares / (len(later) - 1)) ** 0.5 / samples.mean.total, abs=1e-9)


@given(st.lists(st.floats(0.999, 1.001), min_size=3, max_size=60))
def test_of_regular_steps_the_later_half_is_kept_and_of_others_all(totals: list[float]) -> None:
    regular, others = StratumSamples(), StratumSamples()
    for number, total in enumerate(totals):
        regular.add(seconds_of(total))
        others.add(seconds_of(total * (1.5 if number % 2 else 1.0)))
    assert len(regular.later) == min(20, max(3, math.ceil(len(totals) / 2)))
    assert len(others.later) == min(20, len(totals))


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
