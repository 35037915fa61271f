"""Data sets that `datasets` has saved to disk are read by the rules of tables."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from firmware_agent.common.errors import DataError
from host.core.datasets import load_dataset


def test_columns_of_numbers_and_names_of_classes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {"a": list(range(20)), "b": [0.5] * 20, "label": [number % 2 for number in range(20)]}
    features = datasets.Features(
        a=datasets.Value("int32"), b=datasets.Value("float64"), label=datasets.ClassLabel(names=["cat", "dog"])
    )
    whole = datasets.Dataset.from_dict(columns, features)
    whole.save_to_disk(str(tmp_path / "one"))
    data = load_dataset(f"huggingface:{tmp_path / 'one'}", 0)
    assert (data.class_names, data.shape, len(data), len(data.held_out["x"])) == (("cat", "dog"), (2,), 16, 4)
    np.testing.assert_array_equal(data.fields["x"][:, 0] % 2, data.fields["label"])
    datasets.DatasetDict(train=whole, test=whole.select(range(7))).save_to_disk(str(tmp_path / "two"))
    data = load_dataset(f"huggingface:{tmp_path / 'two'}", 0)
    assert (len(data), len(data.held_out["x"])) == (20, 7)
    datasets.DatasetDict(other=whole).save_to_disk(str(tmp_path / "three"))
    with pytest.raises(
        DataError, match=r"cannot be loaded .KeyError: 'train'.*; give the name of one with a part train"
    ):
        load_dataset(f"huggingface:{tmp_path / 'three'}", 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"cannot be loaded .FileNotFoundError"):
        load_dataset(f"huggingface:{tmp_path / 'empty'}", 0)


def test_images_are_labelled_images_of_one_size(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pixels = np.random.default_rng(0).integers(0, 256, (10, 4, 5, 3), np.uint8)
    features = datasets.Features(img=datasets.Image(), label=datasets.ClassLabel(names=["a", "b"]))
    columns = {"img": list(pixels), "label": [0, 1] * 5}
    datasets.Dataset.from_dict(columns, features).save_to_disk(str(tmp_path / "images"))
    data = load_dataset(f"huggingface:{tmp_path / 'images'}", 0)
    assert (data.shape, data.inputs.dtype, data.class_names) == ((3, 4, 5), np.uint8, ("a", "b"))
    seen = np.concatenate([data.fields["image"], data.held_out["image"]])
    assert {image.tobytes() for image in seen} == {image.tobytes() for image in pixels.transpose(0, 3, 1, 2)}
    columns["img"][3] = pixels[3, 1:]
    datasets.Dataset.from_dict(columns, features).save_to_disk(str(tmp_path / "ragged"))
    with pytest.raises(DataError, match=r"record 3, column 'img': has not the shape .3, 4, 5. of the first"):
        load_dataset(f"huggingface:{tmp_path / 'ragged'}", 0)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="missing is not there"):
        load_dataset(f"huggingface:{tmp_path / 'missing'}", 0)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs datasets; pip install 'csd-emu\[huggingface\]'"):
        load_dataset("huggingface:some/name", 0)
