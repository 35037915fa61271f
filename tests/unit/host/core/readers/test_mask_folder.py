"""Images with masks: the class of every pixel is what is to be predicted, and no class of the image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from firmware_agent.common.datafiles.record_set import count_classes, labels_of
from firmware_agent.common.errors import DataError
from firmware_agent.common.losses.built_in_losses import CrossEntropy
from host.core.datasets import load_dataset

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (10, 6, 5, 3), np.uint8)
CLASSES = RANDOM.integers(0, 3, (10, 6, 5)).astype(np.uint8)


def write(folder: Path, masks: np.ndarray = CLASSES, mode: str = "L") -> Path:
    for name, pixels in (("images", IMAGES), ("masks", masks)):
        (folder / name).mkdir(parents=True)
        for number, values in enumerate(pixels):
            image = Image.fromarray(values)
            if name == "masks" and mode == "P":
                image.putpalette(list(range(255, -1, -1)) * 3)
            image.save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize("mode", ["L", "P"])
def test_masks_are_the_target_of_every_pixel(mode: str, tmp_path: Path) -> None:
    data = load_dataset(str(write(tmp_path / "x", mode=mode)), 0)
    assert {name: (column.dtype.name, column.shape[1:]) for name, column in data.fields.items()} == {
        "image": ("uint8", (3, 6, 5)),
        "target": ("uint8", (6, 5)),
    }
    for fields in (data.fields, data.held_out):
        assert labels_of(fields) is None
        assert count_classes(fields) == 0
        for image, mask in zip(fields["image"], fields["target"], strict=True):
            number = next(n for n, each in enumerate(IMAGES) if (each.transpose(2, 0, 1) == image).all())
            np.testing.assert_array_equal(mask, CLASSES[number])
    logits = torch.nn.functional.one_hot(torch.tensor(data.fields["target"]).long(), 3).permute(0, 3, 1, 2) * 50.0
    assert float(CrossEntropy()(logits, {"target": torch.tensor(data.fields["target"])})) < 1e-6
    assert data.input_fields == ["image"]


def test_black_and_white_are_two_classes_and_255_beside_others_stays(tmp_path: Path) -> None:
    white = np.where(CLASSES > 1, 255, 0).astype(np.uint8)
    data = load_dataset(str(write(tmp_path / "two", white)), 0)
    assert set(np.unique(data.fields["target"])) == {0, 1}
    ignored = np.where(CLASSES > 1, 255, CLASSES).astype(np.uint8)
    data = load_dataset(str(write(tmp_path / "three", ignored)), 0)
    assert set(np.unique(data.fields["target"])) == {0, 1, 255}


def test_what_the_makers_held_out_is_held_out(tmp_path: Path) -> None:
    write(tmp_path / "train"), write(tmp_path / "val")
    data = load_dataset(str(tmp_path), 0)
    assert (len(data), len(data.held_out["target"])) == (10, 10)


def test_what_does_not_belong_together_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "x")
    Image.fromarray(IMAGES[0]).save(folder / "masks" / "3.png")
    with pytest.raises(DataError, match=r"masks/3.png: is a mask of mode RGB .* keep class numbers, as 8-bit grey"):
        load_dataset(str(folder), 0)
    Image.fromarray(CLASSES[0][1:]).save(folder / "masks" / "3.png")
    with pytest.raises(DataError, match=r"masks/3.png: is a mask of mode L and size \[5, 5\], its image of \[6, 5\]"):
        load_dataset(str(folder), 0)
    whole = (folder / "masks" / "2.png").read_bytes()
    (folder / "masks" / "3.png").write_bytes(whole[: len(whole) - 25])
    with pytest.raises(DataError, match=r"masks/3.png: cannot be decoded"):
        load_dataset(str(folder), 0)
    (folder / "masks" / "3.png").unlink()
    with pytest.raises(DataError, match=r"images/3.png: is in one of images and masks alone; add the other"):
        load_dataset(str(folder), 0)
    (folder / "images" / "2.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="two images have one name but for the ending"):
        load_dataset(str(folder), 0)
    for name in ("images", "masks"):
        (tmp_path / "empty" / name).mkdir(parents=True)
    with pytest.raises(DataError, match="images has none"):
        load_dataset(str(tmp_path / "empty"), 0)
