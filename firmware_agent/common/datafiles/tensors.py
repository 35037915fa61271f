"""safetensors: a length, a JSON header with name, dtype, shape and place of each tensor, then their bytes.

It is read here, and not by its library, for a drive has no need of that one otherwise; tensors are memory-mapped.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from firmware_agent.common.datafiles.npz import make_source, wanted_names
from firmware_agent.common.datafiles.record_set import RecordSource
from firmware_agent.common.errors import DataError

_LENGTH_BYTES, _MOST_AXES, _METADATA = 8, 8, "__metadata__"
_MOST_HEADER_BYTES = 1 << 20
_DTYPES = {"U8": "|u1", "I8": "|i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U64": "<u8",
           "F16": "<f2", "F32": "<f4", "F64": "<f8"}  # fmt: skip


class _Tensor(msgspec.Struct):
    """One tensor in the header; its place is counted from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def open_file(path: Path) -> RecordSource:
    """Open a safetensors file with one tensor, (records, ...), for each field; see `npz.make_source`.

    Raises:
        DataError: it is damaged, or the tensors do not fit.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        begin = file.read(_LENGTH_BYTES)
        length = struct.unpack("<Q", begin)[0] if len(begin) == _LENGTH_BYTES else _MOST_HEADER_BYTES + 1
        if length > _MOST_HEADER_BYTES:
            raise DataError(f"{path}: is no safetensors file; write it again, or give another path")
        header = file.read(length)
    try:
        entries = msgspec.json.decode(header, type=dict[str, Any])
        entries.pop(_METADATA, None)
        tensors = {name: msgspec.convert(entries[name], _Tensor) for name in wanted_names(path, entries)}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: its header cannot be read ({error}); write it again") from error
    begins = _LENGTH_BYTES + length
    return make_source(
        "safetensors", path, {name: _map(path, name, tensor, begins, size) for name, tensor in tensors.items()}
    )


def _map(path: Path, name: str, tensor: _Tensor, begins: int, size: int) -> npt.NDArray[Any]:
    if tensor.dtype not in _DTYPES:
        raise DataError(f"{path}: {name} is {tensor.dtype}, which is not read; convert it to U8, F32 or I64")
    dtype = np.dtype(_DTYPES[tensor.dtype])
    if len(tensor.shape) > _MOST_AXES or min(tensor.shape, default=1) < 0:
        raise DataError(f"{path}: {name} has a shape that no records have; write it again")
    (begin, end), count = tensor.data_offsets, math.prod(tensor.shape)
    if begin < 0 or end - begin != count * dtype.itemsize or begins + end > size:
        raise DataError(f"{path}: {name} does not fit into the file, which is damaged or cut short; write it again")
    if count == 0:
        return np.empty(tensor.shape, dtype)
    return np.memmap(path, dtype, "r", begins + begin, tensor.shape)
