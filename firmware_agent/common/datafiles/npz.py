"""npz: NumPy arrays in a zip archive; those that lie there as they are, are memory-mapped."""

from __future__ import annotations

import io
import math
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common.datafiles.record_set import (
    FIELD_NAME,
    MOST_FIELDS,
    RecordSet,
    RecordSource,
    check_fields,
    check_images,
    check_labels,
    check_unpacked,
)
from firmware_agent.common.errors import DataError

# Names by which people keep labelled images; in a file with the first, no other array is read.
_IMAGES, _MAYBE_IMAGES = ("images", "labels"), ("x", "y")
# What is held out is called so, what is trained on plainly, or so.
_HELD_OUT, _TRAINED = re.compile(r"test_(.+)|(.+)_test"), re.compile(r"train_(.+)|(.+)_train")
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


def open_file(path: Path) -> RecordSource:
    """Open an npz file with one array, (records, ...), for each field; see `make_source`.

    Raises:
        DataError: it is damaged, or the arrays do not fit.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): info for name, info in archive.NameToInfo.items()}
            wanted = wanted_names(path, members)
            for name, info in ((name, members[name]) for name in wanted):
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise DataError(f"{path}: {name} is packed as numpy never does; write it with numpy.savez")
            arrays = {name: _array(path, archive, members[name]) for name in wanted}
    except _UNREADABLE as error:
        raise DataError(f"{path}: is no readable npz file ({error}); write it again with numpy.savez") from error
    return make_source("npz", path, arrays)


def make_source(kind: str, path: Path, arrays: dict[str, npt.NDArray[Any]]) -> RecordSource:
    """Return the source that named arrays of a file make: labelled images, or records of any form.

    What is called ``test_NAME`` or ``NAME_test`` is held out; NAME, ``train_NAME`` and ``NAME_train`` are one field.

    Raises:
        DataError: they do not fit.
    """
    train: dict[str, npt.NDArray[Any]] = {}
    held_out: dict[str, npt.NDArray[Any]] = {}
    for name, array in arrays.items():
        part, field = _part_of(name)
        of = held_out if part == _HELD_OUT else train
        if field in of:
            raise DataError(f"{path}: {name} is the field {field}, and there is another of that name; leave one out")
        of[field] = array
    return RecordSource(kind, _records(path, train), _records(path, held_out) if held_out else None)


def wanted_names(path: Path, names: Collection[str]) -> list[str]:
    """Return which arrays of a file are fields of records: of labelled images no others, else all.

    Raises:
        DataError: by their number or names they may not be.
    """
    images = [name for name in names if _part_of(name)[1] in _IMAGES]
    if {_part_of(name)[1] for name in images} == set(_IMAGES):
        return images
    if len(names) > 2 * MOST_FIELDS:
        raise DataError(f"{path}: holds {len(names)} arrays; records have at most {MOST_FIELDS} fields, one array each")
    if wrong := [name for name in names if not FIELD_NAME.fullmatch(name)]:
        raise DataError(f"{path}: {wrong[0][:80]!r} is no name of a field; use letters, digits, - and _")
    return list(names)


def _part_of(name: str) -> tuple[re.Pattern[str], str]:
    """Return whether an array is held out or trained on, and of which field it is."""
    part = _HELD_OUT if _HELD_OUT.fullmatch(name) else _TRAINED
    found = part.fullmatch(name)
    return part, next(filter(None, found.groups())) if found else name


def _records(path: Path, fields: dict[str, npt.NDArray[Any]]) -> RecordSet:
    for images_name, labels_name in (_IMAGES, _MAYBE_IMAGES):
        if fields.keys() == {images_name, labels_name} and (
            images_name != "x" or _are_images(fields["x"], fields["y"])
        ):
            images = check_images(fields[images_name], f"{path}: {images_name}")
            labels = check_labels(fields[labels_name], len(images), f"{path}: {labels_name}")
            return RecordSet.of_images(images, labels, (path,))
    return RecordSet(check_fields(fields, str(path)), (path,))


def _are_images(values: npt.NDArray[Any], labels: npt.NDArray[Any]) -> bool:
    whole = labels.dtype.kind in "iu" and labels.size == len(labels)
    return whole and values.ndim in (3, 4) and values.dtype in (np.uint8, np.float32)


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(info) as stream:
        shape, fortran, dtype = _npy_header(stream)
        where = f"{path}: {info.filename}"
        if dtype.hasobject:
            raise DataError(f"{where} holds Python objects, which are never read; keep plain numbers")
        if dtype.kind not in "biuf" or min(shape, default=1) < 0 or len(shape) > _MOST_AXES:
            raise DataError(f"{where} has shape {shape} and type {dtype}; records are plain numbers")
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
