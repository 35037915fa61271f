"""Images with labels, wherever they lie; images are read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from firmware_agent.common.errors import DataError

MOST_CLASSES = 65_536
_BLOCK_BYTES = 4 << 20
_CHANNELS = (1, 3, 4)
# What is unpacked whatever it was packed to, and how much more than that.
_SMALL_BYTES, _MOST_RATIO = 32 << 20, 100


class Images(Protocol):
    """(samples, channels, height, width) images; an array, or something that reads files when it is indexed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(samples, channels, height, width)."""

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
class Labelled:
    """Images with labels.

    Attributes:
        images: (samples, channels, height, width) uint8 or float32.
        labels: (samples,) int64, class numbers from 0.
        files: that all this is in.
        class_names: by number; empty where files know numbers only.
    """

    images: Images
    labels: npt.NDArray[np.int64]
    files: tuple[Path, ...]
    class_names: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """How many classes there are: named ones, else the largest label and those below."""
        return len(self.class_names) or int(self.labels.max()) + 1


@dataclass(frozen=True)
class LabelledSource:
    """What was found at a path: records to train on, and those that its makers held out; `kind` is for people."""

    kind: str
    train: Labelled
    held_out: Labelled | None = None


class Joined:
    """Several arrays of images, one behind the other, none of them copied."""

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        """Take at least one part; all have one dtype and shape but for the number of images."""
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])

    @property
    def shape(self) -> tuple[int, ...]:
        """(samples, channels, height, width)."""
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


def blocks_of(data: Labelled) -> Iterator[bytes]:
    """Yield the content of the images, block by block, checking it on the way.

    Raises:
        DataError: an image cannot be read, differs in shape, or holds NaN or infinite values.
    """
    images = data.images
    if isinstance(images, np.ndarray):
        yield from array_blocks(images, str(data.files[0]))
    elif hasattr(images, "blocks"):
        yield from images.blocks()


def array_blocks(images: npt.NDArray[Any], where: str) -> Iterator[bytes]:
    """Yield the bytes of an array, some records at a time; `where` names it in errors."""
    step = max(1, _BLOCK_BYTES // max(1, images[:1].nbytes))
    for begin in range(0, len(images), step):
        block = np.ascontiguousarray(images[begin : begin + step])
        if block.dtype.kind == "f" and not np.isfinite(block).all():
            bad = begin + int(np.flatnonzero(~np.isfinite(block).all(axis=(1, 2, 3)))[0])
            raise DataError(f"{where}: image {bad} holds NaN or infinite values; correct it or leave it out")
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
        raise DataError(f"{where}: label {wrong} is out of range; class numbers go from 0 to {MOST_CLASSES - 1}")
    return labels.reshape(samples).astype(np.int64)
