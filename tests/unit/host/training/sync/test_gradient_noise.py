"""The gradient noise scale, against gradients of which it is known."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.training.sync.gradient_direction import GradientSample
from host.training.sync.gradient_noise import LEAST_STEPS, MEMORY, NoiseScale

COORDINATES = 512


def observe(
    scale: NoiseScale, sizes: list[int], true_records: float, steps: int, seed: int, length: float = 1.0
) -> None:
    """Show steps whose records have gradients with a variance of `true_records` times the squared mean."""
    random = np.random.default_rng(seed)
    mean = random.standard_normal(COORDINATES)
    mean *= length / np.linalg.norm(mean)
    spread = length * np.sqrt(true_records / COORDINATES)
    for _ in range(steps):
        noise = [random.standard_normal(COORDINATES) * spread / np.sqrt(max(1, size)) for size in sizes]
        scale.observe(
            {
                f"csd-{number:02d}": GradientSample(mean + each, size, 0.0)
                for number, (size, each) in enumerate(zip(sizes, noise, strict=True))
            }
        )


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 256), min_size=2, max_size=8),
    share=st.floats(0.1, 4),
    length=st.floats(1e-3, 1e3),
    seed=st.integers(0, 1000),
)
def test_the_scale_that_gradients_are_made_with_is_found(
    sizes: list[int], share: float, length: float, seed: int
) -> None:
    """Up to four times the step's records: beyond, the noise of few steps hides the gradient."""
    true_records, scale = share * sum(sizes), NoiseScale()
    observe(scale, sizes, true_records, 2 * MEMORY, seed, length)
    assert scale.records is not None
    assert scale.records == pytest.approx(true_records, rel=0.35)


def test_nothing_is_said_in_the_first_steps_and_of_one_drive() -> None:
    scale, alone = NoiseScale(), NoiseScale()
    observe(scale, [8, 8], 10.0, LEAST_STEPS - 1, 1)
    assert scale.records is None
    observe(scale, [8, 8], 10.0, 1, 1)
    assert scale.records is not None
    observe(alone, [8, 0], 10.0, 5 * LEAST_STEPS, 1)
    assert alone.records is None


def test_gradients_that_are_all_noise_have_no_scale_or_a_large_one() -> None:
    scale = NoiseScale()
    observe(scale, [4, 4, 4], 1e6, MEMORY, 3)
    assert scale.records is None or scale.records > 1000


def test_it_follows_a_training_in_which_noise_grows() -> None:
    scale = NoiseScale()
    observe(scale, [16] * 4, 20.0, MEMORY, 1)
    early = scale.records
    observe(scale, [16] * 4, 100.0, 5 * MEMORY, 2)
    assert early is not None
    assert scale.records is not None
    assert early == pytest.approx(20.0, rel=0.2)
    assert scale.records == pytest.approx(100.0, rel=0.2)


@given(st.integers(0, 2 * MEMORY), st.integers(0, 1000))
def test_it_goes_on_from_its_state(steps: int, seed: int) -> None:
    whole, resumed = NoiseScale(), NoiseScale()
    observe(whole, [4, 9], 20.0, steps, seed)
    resumed.load_state(json.loads(json.dumps(whole.state())))
    for scale in (whole, resumed):
        observe(scale, [4, 9], 20.0, 3, seed + 1)
    assert resumed.records == whole.records
