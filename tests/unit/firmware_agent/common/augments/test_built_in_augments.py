"""Built-in augmentations: what becomes of each image, of what lies over it, and of nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.augments.built_in_augments import AUGMENTS
from firmware_agent.common.errors import ModelError
from tests.support.examples import examples

SEEDS = st.integers(0, 2**32)


def batch_of(records: int, seed: int) -> dict[str, torch.Tensor]:
    """Images, masks that are their first channel, and a label."""
    image = torch.from_numpy(np.random.default_rng(seed).integers(1, 256, (records, 3, 6, 5), np.uint8))
    return {"image": image, "target": image[:, 0], "label": torch.arange(records)}


def augment(name: str, batch: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = AUGMENTS[name]()(batch, torch.Generator().manual_seed(seed))
    assert {each: (values.dtype, values.shape) for each, values in found.items()} == {
        each: (values.dtype, values.shape) for each, values in batch.items()
    }
    return found


@settings(max_examples=examples(40))
@given(st.sampled_from(sorted(AUGMENTS)), st.integers(1, 6), SEEDS)
def test_masks_go_with_their_images_and_the_rest_stays(name: str, records: int, seed: int) -> None:
    batch = batch_of(records, seed)
    before = {each: values.clone() for each, values in batch.items()}
    found = augment(name, batch, seed)
    assert torch.equal(found["target"], found["image"][:, 0])
    assert torch.equal(found["label"], batch["label"])
    assert all(torch.equal(before[each], batch[each]) for each in batch)
    assert all(torch.equal(values, augment(name, batch, seed)[each]) for each, values in found.items())


@settings(max_examples=examples(40))
@given(st.integers(1, 6), SEEDS)
def test_an_image_is_mirrored_or_as_it_was(records: int, seed: int) -> None:
    batch = batch_of(records, seed)
    for before, after in zip(batch["image"], augment("flip", batch, seed)["image"], strict=True):
        assert torch.equal(after, before) or torch.equal(after, before.flip(-1))


@settings(max_examples=examples(40))
@given(st.integers(1, 6), SEEDS)
def test_an_image_is_moved_by_four_pixels_at_most(records: int, seed: int) -> None:
    batch = batch_of(records, seed)
    for before, after in zip(batch["image"], augment("crop", batch, seed)["image"], strict=True):
        wide = torch.nn.functional.pad(before, [4] * 4)
        assert any(torch.equal(after, wide[:, y : y + 6, x : x + 5]) for y in range(9) for x in range(9))


def test_half_of_many_images_are_mirrored_and_crops_go_everywhere() -> None:
    batch = batch_of(2000, 0)
    mirrored = (augment("flip", batch, 1)["image"] != batch["image"]).flatten(1).any(1)
    assert 0.45 < mirrored.float().mean() < 0.55
    ones = {"image": torch.ones(2000, 1, 9, 9, dtype=torch.uint8)}
    kept = augment("crop", ones, 1)["image"].flatten(1).sum(1).unique().tolist()
    assert kept == sorted({h * w for h in range(5, 10) for w in range(5, 10)})


@pytest.mark.parametrize("name", sorted(AUGMENTS))
def test_records_without_images_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match=r"are of images, .* and records have x, y; leave them out"):
        AUGMENTS[name]()({"x": torch.ones(2, 3), "y": torch.ones(2)}, torch.Generator())
