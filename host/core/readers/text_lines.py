"""Lines of a text file, plain or packed with gzip, of bounded length."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from firmware_agent.common.datafiles.record_set import check_unpacked
from firmware_agent.common.errors import DataError

MOST_LINE_BYTES = 16 << 20


@contextlib.contextmanager
def open_lines(path: Path) -> Iterator[Iterator[str]]:
    """Open the lines of a file in UTF-8, each with its end; what they are read for is said in the block.

    Raises:
        DataError: it is no such text, is cut short, or a line has more than `MOST_LINE_BYTES`.
    """
    packed = path.suffix.lower() == ".gz"
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            yield _lines(path, file, path.stat().st_size if packed else sys.maxsize)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}); it is damaged or cut short: pack it again") from error


def _lines(path: Path, file: BinaryIO | gzip.GzipFile, packed_bytes: int) -> Iterator[str]:
    total = 0
    for number in itertools.count(1):
        line = file.readline(MOST_LINE_BYTES + 1)
        if not line:
            return
        check_unpacked(total := total + len(line), packed_bytes, str(path))
        if len(line) > MOST_LINE_BYTES:
            raise DataError(f"{path}: line {number} has over {MOST_LINE_BYTES >> 20} MiB; keep such records as .npz")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: line {number} is no text in UTF-8 ({error}); save it as UTF-8") from error
