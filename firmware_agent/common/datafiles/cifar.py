"""CIFAR's binary form: records of one label byte (CIFAR-100: two, the fine one counts) and 3 x 32 x 32 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common.datafiles.record_set import Joined, RecordSet, RecordSource
from firmware_agent.common.errors import DataError

_SHAPE = (3, 32, 32)
_IMAGE_BYTES = 3 * 32 * 32
# How the files of the two sets are called, and their label bytes.
_TEN, _HUNDRED = ("data_batch_*.bin", "test_batch.bin", 1), ("train.bin", "test.bin", 2)


def open_folder(path: Path) -> RecordSource | None:
    """Return the CIFAR-10 or CIFAR-100 in a folder, its test records held out; None if there is none.

    Raises:
        DataError: a file is cut short or empty.
    """
    for train, test, label_bytes in (_TEN, _HUNDRED):
        files = sorted(path.glob(train))
        if files:
            held_out = path / test
            kind = f"CIFAR-{100 if label_bytes == 2 else 10}"
            other = _open([held_out], label_bytes) if held_out.exists() else None
            return RecordSource(kind, _open(files, label_bytes), other)
    return None


def _open(files: Sequence[Path], label_bytes: int) -> RecordSet:
    records = [_records(file, label_bytes) for file in files]
    images = Joined([part[:, label_bytes:].reshape(-1, *_SHAPE) for part in records])
    labels = np.concatenate([part[:, label_bytes - 1] for part in records]).astype(np.int64)
    return RecordSet.of_images(images, labels, tuple(files))


def _records(file: Path, label_bytes: int) -> npt.NDArray[Any]:
    size, record = file.stat().st_size, label_bytes + _IMAGE_BYTES
    if size == 0 or size % record:
        raise DataError(f"{file}: has {size} bytes, not a multiple of {record}; it is cut short: fetch it again")
    return np.memmap(file, np.uint8, "r", 0, (size // record, record))
