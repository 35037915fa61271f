"""IDX, the format of MNIST: a magic number with dtype and axes, the axes' lengths (big endian), then the values."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common.datafiles.record_set import (
    RecordSet,
    RecordSource,
    check_images,
    check_labels,
    check_unpacked,
)
from firmware_agent.common.errors import DataError

_UNSIGNED_BYTE = 0x08
_MOST_HEADER_BYTES = 20
_GZIP = b"\x1f\x8b"
_TRAIN, _TEST = "train", ("t10k", "test")


def open_folder(path: Path) -> RecordSource | None:
    """Return the pair ``train-images...`` and ``train-labels...`` in a folder, the test pair held out; or None.

    Raises:
        DataError: there are images, and they or their labels cannot be read.
    """
    found = sorted(entry for entry in path.iterdir() if entry.is_file() and "images" in entry.name and is_idx(entry))
    if not found:
        return None
    train = [entry for entry in found if entry.name.startswith(_TRAIN)] or found
    if len(train) > 1:
        names = ", ".join(entry.name for entry in train)
        raise DataError(f"{path}: has several sets of images ({names}); give the path of one of them")
    source = open_images(train[0])
    test = next((entry for entry in found if entry.name.startswith(_TEST) and entry != train[0]), None)
    return source if test is None else RecordSource(source.kind, source.train, open_images(test).train)


def is_idx(path: Path) -> bool:
    """Return whether a file's name is that of an IDX file, as MNIST has them."""
    return "ubyte" in path.name or path.suffix == ".idx" or path.name.endswith(".idx.gz")


def open_images(path: Path) -> RecordSource:
    """Open a file of images and the file of labels that lies beside it.

    Raises:
        DataError: one of them cannot be read, or they do not fit.
    """
    labels_path = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    if labels_path == path or not labels_path.exists():
        raise DataError(f"{path}: its labels ({labels_path.name}) are not beside it; put them there")
    images = check_images(read_idx(path), str(path))
    labels = check_labels(read_idx(labels_path), len(images), str(labels_path))
    return RecordSource("IDX", RecordSet.of_images(images, labels, (path, labels_path)))


def read_idx(path: Path) -> npt.NDArray[Any]:
    """Return the array in an IDX file of unsigned bytes: memory-mapped, or in memory if the file is compressed.

    Raises:
        DataError: it is none, or cut short.
    """
    with open(path, "rb") as stream:
        packed = stream.read(2) == _GZIP
    if packed:
        try:
            with gzip.open(path) as unpacked:
                begin = unpacked.read(_MOST_HEADER_BYTES)
                shape, offset = _header(begin, path)
                size = math.prod(shape)
                check_unpacked(size, path.stat().st_size, str(path))
                content = begin[offset:] + unpacked.read(max(0, offset + size - len(begin)))
                if len(content) != size or unpacked.read(1):
                    raise DataError(f"{path}: does not hold the {size} bytes that its header promises; fetch it again")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: cannot be unpacked ({error}); fetch it again") from error
        return np.frombuffer(content, np.uint8).reshape(shape)
    with open(path, "rb") as stream:
        shape, offset = _header(stream.read(_MOST_HEADER_BYTES), path)
    if (size_bytes := path.stat().st_size) != (promised := offset + math.prod(shape)):
        raise DataError(f"{path}: has {size_bytes} bytes, its header promises {promised}; fetch it again")
    return np.memmap(path, np.uint8, "r", offset, shape)


def _header(begin: bytes, path: Path) -> tuple[tuple[int, ...], int]:
    if len(begin) < 4 or begin[:2] != b"\0\0" or not 1 <= begin[3] <= 4:
        raise DataError(f"{path}: is no IDX file; fetch it again, or give another path")
    if begin[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path}: holds values of type 0x{begin[2]:02x}; only unsigned bytes (0x08) are read")
    axes = begin[3]
    if len(begin) < 4 + 4 * axes:
        raise DataError(f"{path}: ends in its header; fetch it again")
    shape = struct.unpack(f">{axes}I", begin[4 : 4 + 4 * axes])
    if 0 in shape:
        raise DataError(f"{path}: holds nothing, its shape is {shape}; fetch it again")
    return shape, 4 + 4 * axes
