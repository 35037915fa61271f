"""A flipped sign is named within 20 steps, and no honest drive is, however unlike its records are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.exchange import Array
from firmware_agent.wire import Step, Stepped
from host.records import What
from host.sync.direction import DirectionWatch, Sampler, Seen
from tests.sync import StepDrive, SyncRun

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

    def run(self, steps: int, flipped: frozenset[int] = frozenset(), rate: float = 0.05) -> dict[str, int]:
        """Return who is accused first in which step."""
        watch, found = DirectionWatch(), dict[str, int]()
        there = dict(enumerate(self.holdings))
        for number in range(1, steps + 1):
            parts = {}
            for place, classes in there.items():
                gradient, loss = self.gradient(classes)
                parts[f"csd-{place}"] = Seen((-gradient if place in flipped else gradient).ravel(), self.batch, loss)
            for device in watch.observe(parts):
                found.setdefault(device, number)
            self.weights -= rate * np.mean([part.sample for part in parts.values()], 0).reshape(FEATURES, CLASSES)
        return found


ALL = list(range(CLASSES))


@pytest.mark.parametrize("count", range(3, 9))
@pytest.mark.parametrize("seed", range(10))
def test_a_flipped_sign_is_named_within_20_steps_and_alone(seed: int, count: int) -> None:
    place = seed % count
    assert Cluster(seed, [ALL] * count, 16).run(20, frozenset({place})) == {f"csd-{place}": 16}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data(), count=st.integers(3, 8))
def test_no_honest_drive_is_accused_whatever_classes_it_has(seed: int, data: st.DataObject, count: int) -> None:
    holdings = [data.draw(st.lists(st.sampled_from(ALL), min_size=1, max_size=10, unique=True)) for _ in range(count)]
    assert Cluster(seed, holdings, data.draw(st.sampled_from([2, 8, 32]))).run(160) == {}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "holdings",
    [
        [[0], *[ALL[1:]] * 3],  # one has what nobody else has
        [[0], [1], [2], [3]],  # everybody does
        [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]],
        [[0], *[[1]] * 5],
    ],
)
def test_a_drive_with_records_that_nobody_else_has_is_not_accused(seed: int, holdings: list[list[int]]) -> None:
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


@pytest.mark.parametrize("others", [2, 3, 7])
async def test_a_drive_with_a_flipped_sign_is_set_aside_within_20_steps(others: int) -> None:
    make: Callable[..., Any] = Pulls
    honest = [make(f"csd-0{number}") for number in range(others)]
    run = SyncRun(*honest, make(f"csd-0{others}", -1.0), learning_rate=0.02, sync={"round_steps": 30})
    rounds = await run.run()
    (told,) = run.told(What.REJECTED)
    assert told.startswith(f"csd-0{others}: in step 16: its gradients point against those of the others")
    assert [text.split(":")[0] for text in run.told(What.SET_ASIDE)] == [f"csd-0{others}"]
    assert not any(f"csd-0{others}" in step.lost or len(step.devices) > others for step in rounds[0].steps[17:])
