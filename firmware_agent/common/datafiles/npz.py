"""npz: NumPy arrays in a zip archive; those that lie there as they are, are memory-mapped."""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common.datafiles.labelled import (
    Labelled,
    LabelledSource,
    check_images,
    check_labels,
    check_unpacked,
)
from firmware_agent.common.errors import DataError

# Names by which people keep images and labels to train on, and those held out.
TRAIN = (("images", "labels"), ("x_train", "y_train"), ("train_images", "train_labels"), ("x", "y"))
HELD_OUT = (("test_images", "test_labels"), ("x_test", "y_test"))
_MOST_AXES, _MOST_HEADER_BYTES = 8, 1 << 14
_UNREADABLE: tuple[type[Exception], ...] = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tokenize.TokenError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
    SyntaxError,
    RecursionError,
    MemoryError,
)
# Of a member's local header: its length, and where the lengths of name and extra field stand in it.
_LOCAL_HEADER_BYTES, _LENGTHS = 30, slice(26, 30)


def open_file(path: Path) -> LabelledSource:
    """Open an npz file with the arrays ``images`` and ``labels`` (or ``x_train`` and ``y_train``, or ``x`` and ``y``).

    Raises:
        DataError: it is damaged, or the arrays are not there or do not fit.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): info for name, info in archive.NameToInfo.items()}
            for name in filter(is_wanted, members):
                if members[name].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise DataError(f"{path}: {name} is packed as numpy never does; write it with numpy.savez")
            arrays = {name: _array(path, archive, members[name]) for name in members if is_wanted(name)}
    except _UNREADABLE as error:
        raise DataError(f"{path}: is no readable npz file ({error}); write it again with numpy.savez") from error
    return make_source("npz", path, arrays)


def make_source(kind: str, path: Path, arrays: dict[str, npt.NDArray[Any]]) -> LabelledSource:
    """Return the source that named arrays of a file make.

    Raises:
        DataError: they are not there, or do not fit.
    """
    train = _pair(path, arrays, TRAIN)
    if train is None:
        names = " and ".join(TRAIN[0])
        raise DataError(f"{path}: has no arrays {names}; it has: {', '.join(sorted(arrays)) or 'nothing of use'}")
    return LabelledSource(kind, train, _pair(path, arrays, HELD_OUT))


def is_wanted(name: str) -> bool:
    """Return whether an array of this name is one that `make_source` may use."""
    return any(name in pair for pair in (*TRAIN, *HELD_OUT))


def _pair(path: Path, arrays: dict[str, npt.NDArray[Any]], names: tuple[tuple[str, str], ...]) -> Labelled | None:
    for images_name, labels_name in names:
        if images_name in arrays and labels_name in arrays:
            images = check_images(arrays[images_name], f"{path}: {images_name}")
            labels = check_labels(arrays[labels_name], len(images), f"{path}: {labels_name}")
            return Labelled(images, labels, (path,))
    return None


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(info) as stream:
        shape, fortran, dtype = _npy_header(stream)
        where = f"{path}: {info.filename}"
        if dtype.hasobject:
            raise DataError(f"{where} holds Python objects, which are never read; keep plain numbers")
        if dtype.kind not in "biuf" or min(shape, default=1) < 0 or len(shape) > _MOST_AXES:
            raise DataError(f"{where} has shape {shape} and type {dtype}; images and labels are plain numbers")
        size = math.prod(shape) * dtype.itemsize
        if info.compress_type != zipfile.ZIP_STORED or fortran or not size:
            check_unpacked(size, info.compress_size, where)
            content = stream.read(size)
            if len(content) != size or stream.read(1):
                raise DataError(f"{where} does not hold the {size} bytes of its shape {shape}; write it again")
            values = np.frombuffer(content, dtype, math.prod(shape)) if size else np.empty(math.prod(shape), dtype)
            return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)
        header_bytes = stream.tell()
    return np.memmap(path, dtype, "r", _content_offset(path, info) + header_bytes, shape)


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    length = stream.read(2 if version == (1, 0) else 4)
    if (size := int.from_bytes(length, "little")) > _MOST_HEADER_BYTES:
        raise ValueError(f"a header of {size} bytes")
    # Read here, for numpy takes memory for whatever length stands there.
    begin = io.BytesIO(length + stream.read(size))
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(begin)
    return np.lib.format.read_array_header_2_0(begin)


def _content_offset(path: Path, info: zipfile.ZipInfo) -> int:
    with open(path, "rb") as file:
        file.seek(info.header_offset)
        name_bytes, extra_bytes = struct.unpack("<HH", file.read(_LOCAL_HEADER_BYTES)[_LENGTHS])
    return info.header_offset + _LOCAL_HEADER_BYTES + int(name_bytes) + int(extra_bytes)
