"""Data sets of the user's own code are stacked, and their errors keep file and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firmware_agent.common.errors import DataError, PluginError
from firmware_agent.common.folded_traceback import format_user_traceback
from host.core.datasets import check_source, load_dataset
from host.core.readers import user_dataset

CODE = """
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset


@dataclass
class Images(Dataset):
    count: int = 20

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((3, 4, 5), index, dtype=torch.uint8), index % 4


class Fields(Images):
    def __getitem__(self, index):
        return {"tokens": numpy.arange(3) + index, "x": [1.0, float(index)], "target": index / 2, "flag": index > 9}


class Breaks(Images):
    def __getitem__(self, index):
        if index == 7:
            raise KeyError("my bug")
        return super().__getitem__(index)


class Ragged(Images):
    def __getitem__(self, index):
        return torch.full((index + 1, 2), index), 0.5


class Wider(Images):
    def __getitem__(self, index):
        return torch.ones(2, index + 1), 0.5


class Mixed(Images):
    def __getitem__(self, index):
        return ([1.0, 2.0] if index else 1.0), 0.5


class Iterable(IterableDataset):
    def __iter__(self):
        yield 1


class Text(Images):
    def __getitem__(self, index):
        return "abc", 1


class Three(Images):
    def __getitem__(self, index):
        return 1, 1, 2


class Late(Images):
    def __getitem__(self, index):
        return {"x": 1.0} if index < 3 else {"z": 1.0}


def channels_last():
    return [(numpy.zeros((6, 5, 3), numpy.float32), numpy.int32(n % 2)) for n in range(10)]


def leaves():
    raise SystemExit(0)


def series():
    return TensorDataset(torch.ones(10, 6, 2), torch.arange(10) % 2)


def huge():
    return Images(10**12)


def empty():
    return []


def beside():
    return [(float(number), 1.0) for number in (Path(__file__).parent / "numbers.txt").read_text().split()]


instance = TensorDataset(torch.arange(20.0)[:, None], torch.arange(20.0)[:, None])
only = TensorDataset(torch.ones(20, 3))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_data.py"
    path.write_text(CODE)
    return path


def test_images_with_class_numbers_are_labelled_images(file: Path) -> None:
    data = load_dataset(f"{file}:Images", 0)
    assert {name: (column.dtype, column.shape) for name, column in data.fields.items()} == {
        "image": (np.uint8, (16, 3, 4, 5)),
        "label": (np.int64, (16,)),
    }
    assert (data.classes, data.code, len(data.held_out["label"])) == (4, CODE, 4)
    np.testing.assert_array_equal(data.fields["image"][:, 0, 0, 0] % 4, data.fields["label"])
    last = load_dataset(f"{file}:channels_last", 0)
    assert (last.shape, last.classes) == ((3, 6, 5), 2)


def test_other_items_are_fields_of_their_own(file: Path) -> None:
    data = load_dataset(f"{file}:Fields", 0)
    forms = {name: (column.dtype.name, column.shape[1:]) for name, column in data.fields.items()}
    assert forms == {
        "tokens": ("int64", (3,)),
        "x": ("float32", (2,)),
        "target": ("float32", ()),
        "flag": ("int64", ()),
    }
    np.testing.assert_array_equal(data.fields["tokens"][:, 0], data.fields["x"][:, 1])
    assert load_dataset(f"{file}:series", 0).shape == (6, 2)  # a series is no image
    whole = load_dataset(f"{file}:instance", 0)
    np.testing.assert_array_equal(whole.fields["x"], whole.fields["y"])
    assert list(load_dataset(f"{file}:only", 0).fields) == ["x"]


def test_code_finds_what_lies_beside_it(file: Path) -> None:
    (file.parent / "numbers.txt").write_text(" ".join(map(str, range(10))))
    data = load_dataset(f"{file}:beside", 0)
    assert sorted([*data.fields["x"], *data.held_out["x"]]) == list(range(10))


def test_an_error_of_the_users_keeps_file_and_line(file: Path) -> None:
    with pytest.raises(PluginError, match=r"my_data\.py:Breaks: item 7 failed: KeyError: 'my bug'") as caught:
        load_dataset(f"{file}:Breaks", 0)
    line = CODE.splitlines().index('            raise KeyError("my bug")') + 1
    assert f'File "{file}", line {line}, in __getitem__' in format_user_traceback(caught.value)
    with pytest.raises(PluginError, match="making it failed: SystemExit"):
        load_dataset(f"{file}:leaves", 0)
    file.write_text("class Needs(list):\n    def __init__(self, path):\n        pass\n")
    with pytest.raises(PluginError, match=r"making it failed: TypeError: .*missing"):
        load_dataset(f"{file}:Needs", 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Wider", r"item 1 is x float32\[2, 2\], y float32\[\], item 0 x float32\[2, 1\], .* pad, cut or convert"),
        ("Mixed", r"item 1 is x float32\[2\], y float32\[\], item 0 x float32\[\], y float32\[\]; pad"),
        ("Late", r"item 3 is z float32\[\], item 0 x float32\[\]"),
        ("Iterable", "has no __len__ or no __getitem__; give a map-style data set"),
        ("Text", "item 0: str is no number; an item is"),
        ("Three", "item 0: it has 3 parts, .*; an item is"),
        ("huge", "take 63329.9 GiB in memory, more than 8; give fewer, or write them to an .npz"),
        ("empty", "holds no records; give some"),
        ("nope", "it has no 'nope'; write my_data"),
    ],
)
def test_what_makes_no_records_is_named(name: str, message: str, file: Path) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(f"{file}:{name}", 0)
    assert f"{file}:{name}" in str(caught.value)


def test_what_is_looked_at_before_is_not_run(file: Path) -> None:
    file.write_text("raise KeyError\nname = 1\n")
    check_source(f"{file}:name", "data.source")
    for source, message in (
        (f"{file}:other", "it has no 'other'"),
        ("missing.py:name", "No such file"),
        ("os:getcwd", "standard library, where nothing may be named"),
        ("numpy:zeros", "one of csd-emu's own dependencies"),
        ("no_such_package:name", "is in no installed package"),
    ):
        with pytest.raises(DataError, match=f"job.yaml: data.source: {source}: cannot be imported: .*{message}"):
            check_source(source, "job.yaml: data.source")


def test_memory_is_bounded_to_the_byte(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_dataset, "MOST_BYTES", 20 * (3 * 4 * 5 + 8))
    assert len(load_dataset(f"{file}:Images", 0)) == 16
    monkeypatch.setattr(user_dataset, "MOST_BYTES", 20 * (3 * 4 * 5 + 8) - 1)
    with pytest.raises(DataError, match="more than 0"):
        load_dataset(f"{file}:Images", 0)


def test_items_that_differ_in_length_are_padded_beside_their_lengths(file: Path) -> None:
    data = load_dataset(f"{file}:Ragged", 0)
    x, lengths = data.fields["x"], data.fields["x.length"]
    assert (x.shape, lengths.dtype, data.input_fields) == ((16, 20, 2), np.int64, ["x"])
    np.testing.assert_array_equal(lengths, 1 + x[:, 0, 0])
    for record, length in zip(x, lengths, strict=True):
        assert (record[:length] == length - 1).all()
        assert not record[length:].any()


def test_memory_of_items_that_grow_is_bounded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_dataset, "MOST_BYTES", 400)
    with pytest.raises(DataError, match=r"more than 0; give fewer"):
        load_dataset(f"{file}:Ragged", 0)
