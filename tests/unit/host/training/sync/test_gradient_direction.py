"""A flipped sign is named within 20 steps, and no honest drive is, however unlike its records are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_lab.bench.harness import array_of
from firmware_agent.common.frames.step_frames import Step, Stepped
from firmware_agent.common.slices import Array
from host.config.job_file import DataSection
from host.core.records import EventKind
from host.fleet.shards import dealt_alike
from host.training.contributions import Refusal
from host.training.sync.gradient_direction import EARLY, WINDOW, DirectionWatch, GradientSample, Sampler
from tests.support.examples import examples
from tests.support.sync import StepDrive, SyncRun

Floats = npt.NDArray[np.float64]
CLASSES, FEATURES = 10, 20


class Cluster:
    """Drives that train a linear classifier together; each has records of some classes only."""

    def __init__(self, seed: int, holdings: list[list[int]], batch: int) -> None:
        self.rng, self.batch = np.random.default_rng(seed), batch
        self.centres = self.rng.standard_normal((CLASSES, FEATURES))
        self.holdings, self.weights = holdings, np.zeros((FEATURES, CLASSES))

    def gradient(self, classes: list[int]) -> tuple[Floats, float]:
        labels = self.rng.choice(classes, self.batch)
        inputs = self.centres[labels] + 1.5 * self.rng.standard_normal((self.batch, FEATURES)) + 1.0
        logits = inputs @ self.weights
        logits -= logits.max(1, keepdims=True)
        odds = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        loss = float(-np.log(np.maximum(odds[np.arange(self.batch), labels], 1e-12)).mean())
        odds[np.arange(self.batch), labels] -= 1
        return inputs.T @ odds / self.batch, loss

    def run(
        self, steps: int, flipped: frozenset[int] = frozenset(), rate: float = 0.05, alike: bool = False
    ) -> dict[str, int]:
        """Return who is accused first in which step."""
        watch, found = DirectionWatch(alike), dict[str, int]()
        there = dict(enumerate(self.holdings))
        for number in range(1, steps + 1):
            parts = {}
            for place, classes in there.items():
                gradient, loss = self.gradient(classes)
                parts[f"csd-{place}"] = GradientSample(
                    (-gradient if place in flipped else gradient).ravel(), self.batch, loss
                )
            for device in watch.observe(number, parts):
                found.setdefault(device, number)
            self.weights -= rate * np.mean([part.sample for part in parts.values()], 0).reshape(FEATURES, CLASSES)
        return found


ALL = list(range(CLASSES))


@pytest.mark.slow
def test_a_flipped_sign_is_named_within_20_steps_and_alone(subtests: pytest.Subtests) -> None:
    for seed in range(10):
        for count in range(3, 9):
            with subtests.test(count=count, seed=seed):
                place = seed % count
                assert Cluster(seed, [ALL] * count, 16).run(20, frozenset({place})) == {f"csd-{place}": 16}


def window_of(strong: float, loss: float, alike: bool, begin: int = 1) -> dict[str, Refusal]:
    """Return who is accused after a window in which three drives agree and a fourth, `strong`, opposes them."""
    watch, direction = DirectionWatch(alike), np.ones(8)
    parts = {f"csd-{place}": GradientSample(direction, 16, 2.0) for place in range(3)}
    for step in range(WINDOW):
        accused = watch.observe(
            begin + step, parts | {"csd-3": GradientSample(-strong * direction, 16, 2.0 + loss * step)}
        )
    return accused


def test_who_outweighs_the_others_or_loses_by_them_may_be_honest_unless_all_records_are_alike() -> None:
    assert list(window_of(1.0, 0.0, alike=False)) == ["csd-3"]
    assert not window_of(5.0, 0.0, alike=False)
    assert not window_of(1.0, 0.1, alike=False)
    for strong, loss in ((1.0, 0.0), (5.0, 0.0), (1.0, 0.1)):
        accused = window_of(strong, loss, alike=True)
        assert list(accused) == ["csd-3"]
        assert "its records are like theirs" in accused["csd-3"].detail
        assert not window_of(strong, loss, alike=True, begin=1 + EARLY * WINDOW)  # as of a run that is resumed


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(3, 8), batch=st.sampled_from([8, 32]))
def test_no_honest_drive_with_records_like_the_others_is_accused(seed: int, count: int, batch: int) -> None:
    assert Cluster(seed, [ALL] * count, batch).run(160, alike=True) == {}


def test_records_are_alike_if_enough_are_dealt_to_each_at_random_and_none_lie_there_already() -> None:
    drives = array_of("alike", 2, "native").list_nodes()
    evenly, unlike = (
        DataSection.model_validate({"source": "digits", "partition": {"dirichlet": d}}) for d in (None, 0.5)
    )
    assert dealt_alike(drives, evenly, [256, 300])
    assert not dealt_alike(drives, evenly, [255, 300])
    assert not dealt_alike(drives, evenly, [])
    assert not dealt_alike(drives, unlike, [256, 300])
    assert not dealt_alike([drives[0], drives[1].model_copy(update={"data": "own"})], evenly, [256, 300])


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data(), count=st.integers(3, 8))
def test_no_honest_drive_is_accused_whatever_classes_it_has(seed: int, data: st.DataObject, count: int) -> None:
    holdings = [data.draw(st.lists(st.sampled_from(ALL), min_size=1, max_size=10, unique=True)) for _ in range(count)]
    assert Cluster(seed, holdings, data.draw(st.sampled_from([2, 8, 32]))).run(160) == {}


@pytest.mark.slow
def test_a_drive_with_records_that_nobody_else_has_is_not_accused(subtests: pytest.Subtests) -> None:
    for holdings in [
        [[0], *[ALL[1:]] * 3],  # one has what nobody else has
        [[0], [1], [2], [3]],  # everybody does
        [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]],
        [[0], *[[1]] * 5],
    ]:
        for seed in range(10):
            with subtests.test(seed=seed, holdings=holdings):
                assert Cluster(seed, holdings, 16).run(300) == {}


def test_coordinates_are_the_same_for_all_and_spread_over_all_tensors() -> None:
    arrays: dict[str, Array] = {"a": np.arange(10_000.0).reshape(100, 100), "b": 10_000 + np.arange(10_000.0)}
    sample = Sampler({"a": 10_000, "b": 10_000}, 3).take(arrays)
    assert len(sample) == len(set(sample)) == 4096
    assert 0.4 < np.mean(sample < 10_000) < 0.6
    assert np.array_equal(sample, Sampler({"a": 10_000, "b": 10_000}, 3).take(arrays))
    assert len(Sampler({}, 0).take({})) == 0


class Pulls(StepDrive):
    """Its gradient leads to a point, and its loss is how far that is; some turn the sign."""

    def __init__(self, device: str, sign: float = 1.0) -> None:
        super().__init__(device)
        self.sign, self.loss = sign, 0.0

    def gradients(self, records: Array, weights: Mapping[str, Array]) -> dict[str, Array]:
        aim = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
        self.loss = float(np.square(weights["w"] - aim).mean())
        found = {"w": self.sign * (weights["w"] - aim), "b": self.sign * (weights["b"] + 1)}
        return {name: array.astype(np.float32) for name, array in found.items()} | {"n": weights["n"] + 1}

    def stepped(self, task: Step) -> Stepped:
        stepped = super().stepped(task)
        return Stepped(stepped.step, stepped.samples, self.loss, stepped.seconds, stepped.read_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("others", [2, 3, 7])
async def test_a_drive_with_a_flipped_sign_is_set_aside_within_20_steps(others: int) -> None:
    make: Callable[..., Any] = Pulls
    honest = [make(f"csd-0{number}") for number in range(others)]
    run = SyncRun(*honest, make(f"csd-0{others}", -1.0), learning_rate=0.02, sync={"round_steps": 30})
    rounds = await run.run()
    (told,) = run.told(EventKind.REJECTED)
    assert told.startswith(f"csd-0{others}: in step 16: its gradients point against those of the others")
    assert [text.split(":")[0] for text in run.told(EventKind.SET_ASIDE)] == [f"csd-0{others}"]
    assert not any(f"csd-0{others}" in step.lost or len(step.devices) > others for step in rounds[0].steps[17:])
