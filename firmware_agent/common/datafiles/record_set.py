"""Records, wherever they lie: named tensors of any shape; those that lie in many files are read when asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from firmware_agent.common.errors import DataError

MOST_CLASSES, MOST_FIELDS = 65_536, 64
FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_BLOCK_BYTES = 4 << 20
_CHANNELS = (1, 3, 4)
# What is unpacked whatever it was packed to, and how much more than that.
_SMALL_BYTES, _MOST_RATIO = 32 << 20, 100


_TARGETS = ("label", "labels", "y", "target", "targets")
IMAGE, LABEL = "image", "label"
"""Fields of a labelled image: (channels, height, width) uint8 or float32, and an int64 class number from 0."""
LENGTH = ".length"
"""Ends the name of a field of lengths, int64: NAME is padded, and values behind a record's own are none."""


class Column(Protocol):
    """One field of all records, (records, ...); an array, or something that reads files when it is indexed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(records, ...)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of all of them."""

    @property
    def nbytes(self) -> int:
        """What all of them take in memory."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return those at these places, in this order."""


@dataclass(frozen=True)
class RecordSet:
    """Records that were found in files.

    Attributes:
        fields: name -> (records, ...); all of one length, over 0.
        files: that all this is in.
        class_names: by number; empty where files know numbers only, or there are no classes.
    """

    fields: Mapping[str, Column]
    files: tuple[Path, ...]
    class_names: tuple[str, ...] = ()

    @classmethod
    def of_images(
        cls, images: Column, labels: npt.NDArray[np.int64], files: tuple[Path, ...], class_names: tuple[str, ...] = ()
    ) -> RecordSet:
        """Return labelled images: (records, channels, height, width) uint8 or float32, and class numbers from 0."""
        return cls({IMAGE: images, LABEL: labels}, files, class_names)

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    @property
    def classes(self) -> int:
        """How many classes there are: named ones, else the largest label and those below; 0 without labels."""
        return len(self.class_names) or count_classes(self.fields)


def target_of(fields: Collection[str]) -> str | None:
    """Return which of these fields a model is to predict, by its name; None if no name says so."""
    return next((name for name in _TARGETS if name in fields), None)


def input_of(fields: Collection[str]) -> str:
    """Return the field that the model takes, where the job does not name it: the only one but target and lengths.

    Raises:
        DataError: there are several.
    """
    target = target_of(fields)
    inputs = [name for name in fields if name != target and not name.endswith(LENGTH)] or list(fields)
    if len(inputs) > 1:
        raise DataError(f"data.input: records have {', '.join(inputs)}; name the field that the model takes")
    return inputs[0]


def labels_of(fields: Mapping[str, Column]) -> npt.NDArray[np.integer] | None:
    """Return (records,) the class numbers of records; None if what is to be predicted is no class."""
    labels = fields.get(target_of(fields) or "")
    return labels if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.ndim == 1 else None


def count_classes(fields: Mapping[str, Column]) -> int:
    """Return the largest class number of records, and one; 0 if they have no classes."""
    labels = labels_of(fields)
    return 0 if labels is None else int(labels.max()) + 1


@dataclass(frozen=True)
class RecordSource:
    """What was found at a path: records to train on, and those that its makers held out; `kind` is for people."""

    kind: str
    train: RecordSet
    held_out: RecordSet | None = None


class Joined:
    """Several arrays, one behind the other, none of them copied."""

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        """Take at least one part; all have one dtype and shape but for the number of records."""
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])

    @property
    def shape(self) -> tuple[int, ...]:
        """(records, ...)."""
        return (len(self), *self._parts[0].shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of all of them."""
        return self._parts[0].dtype

    @property
    def nbytes(self) -> int:
        """What all of them take in memory."""
        return sum(part.nbytes for part in self._parts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: npt.NDArray[Any]) -> npt.NDArray[Any]:
        places = np.asarray(index)
        taken = np.empty((len(places), *self.shape[1:]), self.dtype)
        owner = np.searchsorted(self._ends, places, side="right")
        for number in np.unique(owner):
            mine = owner == number
            begin = self._ends[number] - len(self._parts[number])
            taken[mine] = self._parts[number][places[mine] - begin]
        return taken

    def blocks(self) -> Iterator[bytes]:
        """Yield all of the content, part after part."""
        for part in self._parts:
            yield from array_blocks(part, "")


def blocks_of(column: Column, where: str) -> Iterator[bytes]:
    """Yield the content of a field of all records, block by block, checking it on the way; `where` names it in errors.

    Raises:
        DataError: a record cannot be read, differs in shape, or holds NaN or infinite values.
    """
    if isinstance(column, np.ndarray):
        yield from array_blocks(column, where)
    elif hasattr(column, "blocks"):
        yield from column.blocks()


def array_blocks(values: npt.NDArray[Any], where: str) -> Iterator[bytes]:
    """Yield the bytes of an array, some records at a time; `where` names it in errors."""
    step = max(1, _BLOCK_BYTES // max(1, values[:1].nbytes))
    for begin in range(0, len(values), step):
        block = np.ascontiguousarray(values[begin : begin + step])
        if block.dtype.kind == "f" and not np.isfinite(block).all():
            bad = begin + int(np.flatnonzero(~np.isfinite(block.reshape(len(block), -1)).all(axis=1))[0])
            raise DataError(f"{where}: record {bad} holds NaN or infinite values; correct it or leave it out")
        yield block.tobytes()


def check_unpacked(unpacked_bytes: int, packed_bytes: int, where: str) -> None:
    """Return if `packed_bytes` of a file may become so many when they are unpacked.

    Raises:
        DataError: there are far more than images shrink by, so they are there to fill the memory.
    """
    if unpacked_bytes > max(_SMALL_BYTES, _MOST_RATIO * packed_bytes):
        raise DataError(
            f"{where}: {packed_bytes} bytes would be unpacked to {unpacked_bytes}; over {_MOST_RATIO} times as many "
            "are refused: keep it uncompressed"
        )


def check_images(images: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Return images as (samples, channels, height, width), a view: grey ones get a channel, the last axis may be it.

    Raises:
        DataError: they are no uint8 or float32 images, or there are none.
    """
    if images.dtype not in (np.uint8, np.float32):
        raise DataError(f"{where}: images are {images.dtype}, not uint8 or float32; convert them")
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise DataError(f"{where}: an array of {images.shape} is no set of images; it must be (images, [channels,] "
                        "height, width)")  # fmt: skip
    if images.ndim == 3:
        return images[:, None]
    if images.shape[1] not in _CHANNELS and images.shape[3] in _CHANNELS:
        return images.transpose(0, 3, 1, 2)
    return images


def check_labels(labels: npt.NDArray[Any], samples: int, where: str) -> npt.NDArray[np.int64]:
    """Return labels as (samples,) int64.

    Raises:
        DataError: they are no class numbers, or not one for each image.
    """
    if labels.dtype.kind not in "iu":
        raise DataError(f"{where}: labels are {labels.dtype}, not whole numbers; give class numbers from 0")
    if labels.shape not in ((samples,), (samples, 1)):
        raise DataError(f"{where}: labels of shape {labels.shape} do not fit {samples} images; give one for each")
    if int(labels.min()) < 0 or int(labels.max()) >= MOST_CLASSES:
        wrong = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
        raise DataError(f"{where}: label {wrong} is out of range; class numbers go from 0 to {MOST_CLASSES - 1}; store "
                        "values to regress on as float32")  # fmt: skip
    return labels.reshape(samples).astype(np.int64)


def check_fields(fields: Mapping[str, npt.NDArray[Any]], where: str) -> Mapping[str, npt.NDArray[Any]]:
    """Return the fields of records of any form.

    Raises:
        DataError: there are none or too many, one has another length, or a class number or a record's length is out
            of range.
    """
    if not fields or len(fields) > MOST_FIELDS:
        raise DataError(f"{where}: has {len(fields)} arrays; records have 1 to {MOST_FIELDS} fields, one array each")
    first, *_ = fields
    for name, column in fields.items():
        if column.ndim == 0 or 0 in column.shape or column.dtype.kind not in "biuf" or column.dtype.itemsize > 8:
            told = f"{name} is {column.dtype} of shape {column.shape}"
            raise DataError(f"{where}: {told}; give (records, ...) numbers of at most 8 bytes")
        if len(column) != len(fields[first]):
            raise DataError(
                f"{where}: {name} has {len(column)} records, {first} has {len(fields[first])}; give all fields one "
                "length, and call what is held out test_NAME"
            )
    plain = {name: column.astype(kind) if (kind := _plain(column.dtype)) else column for name, column in fields.items()}
    target = target_of(plain) or ""
    if target in plain and plain[target].dtype.kind == "i" and plain[target].size == len(plain[target]):
        plain[target] = check_labels(plain[target].reshape(-1), len(plain[target]), where)
    return plain | {name: _check_lengths(name, plain, where) for name in plain if name.endswith(LENGTH)}


def _check_lengths(name: str, fields: Mapping[str, npt.NDArray[Any]], where: str) -> npt.NDArray[np.int64]:
    """Return how long records of a padded field are, int64.

    Raises:
        DataError: there is no such field, or they do not fit to it.
    """
    lengths, padded = fields[name], fields.get(name.removesuffix(LENGTH), np.empty(0))
    if (lengths.ndim, lengths.dtype.kind in "iu", padded.ndim > 1) != (1, True, True) or not (
        0 <= lengths.min() <= lengths.max() <= padded.shape[1]
    ):
        raise DataError(
            f"{where}: {name} is {lengths.dtype}{list(lengths.shape)} from {lengths.min()} to {lengths.max()}, "
            f"{name.removesuffix(LENGTH)} of shape {list(padded.shape)}; give (records,) whole numbers from 0 to how "
            "long that is padded, or call it otherwise"
        )
    return lengths.astype(np.int64)


def _plain(dtype: np.dtype[Any]) -> str | None:
    """Return what values must become that torch does not compute with; None if it does."""
    if dtype.kind == "u" and dtype.itemsize > 1:
        return "=i4" if dtype.itemsize == 2 else "=i8"
    return None if dtype.isnative else dtype.newbyteorder("=").str
