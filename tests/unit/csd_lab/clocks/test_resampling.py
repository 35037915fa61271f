"""Replays of jobs on the clock ``sampled``, from series whose truth is known."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_lab.clocks.resampling import NEAREST, Held, Place, RecordedSteps, StepKind, coverage, replay
from csd_lab.clocks.step_series import DevicePass, SeriesStep, StepSeries
from host.core.sampling.sampled_steps import SampledSteps

DEVICES = ("csd-00", "csd-01", "csd-02")
REGULAR, IRREGULAR = 0.001, 0.03
# Of a drive's first step, and of what machines differ by: as counted ones do.
FIRST, BETWEEN_MACHINES = 1.3, 0.0005


def synchronous(scatter: float, seed: int, steps: int = 60, devices: int = 3) -> StepSeries:
    rng = np.random.default_rng(seed)
    speeds = {device: 1 + BETWEEN_MACHINES * rng.standard_normal() for device in DEVICES[:devices]}

    def seconds(device: str, number: int) -> float:
        return float(speeds[device] * (FIRST if number == 0 else 1.0) * (1 + scatter * rng.standard_normal()))

    passes = [
        [
            DevicePass(device=device, steps=[SeriesStep(records=32, seconds=seconds(device, number))])
            for device in speeds
        ]
        for number in range(steps)
    ]
    return StepSeries(sync=True, passes=passes, round_passes=[10] * (steps // 10))


def federated(scatter: float, seed: int, rounds: int = 5) -> StepSeries:
    rng = np.random.default_rng(seed)
    passes = []
    for number in range(rounds):
        parts = []
        for place, device in enumerate(DEVICES):
            sizes = ([32] * 9 + [5 + place]) * 2
            begin = [1.3 if number == 0 else 1.05, 1.02]
            more = np.array([*begin, *[1.0] * (len(sizes) - 2)]) * (1 + scatter * rng.standard_normal(len(sizes)))
            steps = [SeriesStep(records=size, seconds=float(size * m)) for size, m in zip(sizes, more, strict=True)]
            parts.append(DevicePass(device=device, steps=steps, encode_seconds=3.0))
        passes.append(parts)
    return StepSeries(sync=False, passes=passes, round_passes=[1] * rounds, epochs=2, batch_size=32)


def held_by(series: list[StepSeries], replays: int = 10) -> list[Held]:
    return [held for each in series for seed in range(replays) for held in replay(each, seed)]


@pytest.mark.parametrize("scatter", [REGULAR, IRREGULAR])
def test_intervals_hold_the_truth_of_regular_and_irregular_steps(scatter: float) -> None:
    held = held_by([synchronous(scatter, seed) for seed in range(8)])
    assert coverage(held) >= 0.93
    # They are no wider than they have to be by a factor that would make them worthless.
    spread = float(np.sqrt(np.mean([each.error**2 for each in held])))
    assert np.mean([each.half_width for each in held]) <= 8 * max(spread, BETWEEN_MACHINES)


def test_intervals_hold_the_truth_of_federated_rounds() -> None:
    held = held_by([federated(REGULAR, seed) for seed in range(6)])
    assert coverage(held) >= 0.93
    assert {each.device for each in held} == set(DEVICES)


def test_intervals_that_are_too_narrow_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    record = SampledSteps.record
    narrow = 0.05

    def record_less(self: SampledSteps) -> object:
        said = record(self)
        drives = {
            name: msgspec.structs.replace(drive, half_width_seconds=narrow * drive.half_width_seconds)
            for name, drive in said.drives.items()
        }
        return msgspec.structs.replace(said, drives=drives)

    monkeypatch.setattr(SampledSteps, "record", record_less)
    assert coverage(held_by([synchronous(REGULAR, seed) for seed in range(4)])) < 0.7


def test_a_machine_that_is_slower_than_those_it_counts_for_is_seen() -> None:
    slow = synchronous(REGULAR, 0)
    passes = [[_times(part, 1.0 if part.device == "csd-00" else 1.05) for part in parts] for parts in slow.passes]
    held = held_by([StepSeries(sync=True, passes=passes, round_passes=slow.round_passes)])
    assert coverage(held) < 0.9


def test_one_drive_whose_every_step_is_the_same_is_counted_exactly() -> None:
    (held,) = replay(synchronous(0.0, 0, devices=1), 0)
    assert held.error == pytest.approx(0.0, abs=1e-12)
    assert held.inside


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**16), sync=st.booleans())
def test_a_replay_repeats_with_its_seed(seed: int, sync: bool) -> None:
    series = synchronous(0.01, 3, steps=20) if sync else federated(REGULAR, 3, rounds=2)
    assert replay(series, seed) == replay(series, seed)


def test_a_drives_first_step_is_drawn_for_a_machines_first_alone() -> None:
    """A machine that is warm has no such step, however it takes a size for the first time."""
    cold, warm = 10.0, 1.0
    steps = {
        "csd-00": [SeriesStep(records=8, seconds=cold)] + [SeriesStep(records=8, seconds=warm)] * 4,
        "csd-01": [SeriesStep(records=4, seconds=cold)] + [SeriesStep(records=4, seconds=warm)] * 4,
    }
    passes = [
        [DevicePass(device=device, steps=[each[number]]) for device, each in steps.items()] for number in range(5)
    ]
    recorded = RecordedSteps(StepSeries(sync=True, passes=passes, round_passes=[5]))
    rng, place = np.random.default_rng(0), Place(sync=True)
    drawn = [recorded.draw(place.next(records, 0), "csd-00", 0, rng) for records in (8, 8, 4, 4)]
    assert drawn == [cold, warm, warm, warm]


@pytest.mark.parametrize("donor", ["csd-00", "csd-01"])
def test_draws_are_those_of_one_drive_at_about_the_same_age(donor: str) -> None:
    seconds = {"csd-00": 1.0, "csd-01": 2.0}
    passes = [
        [
            DevicePass(device=device, steps=[SeriesStep(records=8, seconds=each + 0.001 * number)])
            for device, each in seconds.items()
        ]
        for number in range(40)
    ]
    recorded = RecordedSteps(StepSeries(sync=True, passes=passes, round_passes=[40]))
    rng = np.random.default_rng(0)
    drawn = [recorded.draw(StepKind(8, 0), donor, 20, rng) for _ in range(50)]
    assert all(abs(each - (seconds[donor] + 0.019)) <= 0.001 * NEAREST / 2 + 1e-9 for each in drawn)
    assert len(set(drawn)) > 1


def test_a_drive_that_took_few_steps_is_no_donor() -> None:
    series = synchronous(REGULAR, 0, steps=20, devices=2)
    few = [[part for part in parts if part.device == "csd-00"] for parts in series.passes[:15]] + series.passes[15:]
    recorded = RecordedSteps(StepSeries(sync=True, passes=few, round_passes=[10, 10]))
    assert recorded.donors == ["csd-00"]


def test_a_step_that_nobody_took_is_not_made_up() -> None:
    recorded = RecordedSteps(synchronous(REGULAR, 0, steps=10))
    with pytest.raises(AssertionError, match="no drive took"):
        recorded.draw(StepKind(7, 0), "csd-00", 0, np.random.default_rng(0))


def _times(part: DevicePass, factor: float) -> DevicePass:
    steps = [SeriesStep(records=step.records, seconds=factor * step.seconds) for step in part.steps]
    return DevicePass(device=part.device, steps=steps)
