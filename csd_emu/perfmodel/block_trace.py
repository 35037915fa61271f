"""Block traces in two public formats, as commands of the host.

* MSR Cambridge (Narayanan et al., "Write off-loading", FAST 2008; SNIA's IOTTA repository): lines of ``Timestamp,
  Hostname,DiskNumber,Type,Offset,Size,ResponseTime``; times are in 100 ns, offsets and sizes in bytes.
* fio's iolog, versions 2 and 3 (fio, HOWTO, "Trace file format"): lines of ``file action offset length``, with ``wait``
  for so many microseconds in version 2, and with a time in microseconds before each line in version 3. Offsets of all
  files count from the namespace's beginning; of the actions only reads and writes reach the drive.

Blank lines count, and say nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from csd_emu.perfmodel.flash.flash_drive import commands_table
from csd_emu.perfmodel.flash.flash_queues import Columns
from firmware_agent.common.errors import DataError

MOST_LINES, LONGEST_LINE = 1_000_000, 4096
"""Of a trace, and characters of a line."""
_FIO = {"fio version 2 iolog": 2, "fio version 3 iolog": 3}
_MOVES, _OTHERS = ("read", "write"), ("add", "open", "close", "wait", "sync", "datasync", "trim")
_MOST_NS = 2**60
_FIELDS = {
    0: "7 fields are due: Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime",
    2: "2 or 4 fields are due: file action offset length",
    3: "3 or 5 fields are due: time file action offset length",
}
_Line = tuple[int, str, int, int]


def read_block_trace(path: Path, page_bytes: int, namespace_pages: int) -> Columns:
    """Return the commands of a trace, in pages that they touch; the first line of MSR's is at 0.

    Raises:
        DataError: it cannot be read, is too long or has no commands, or a line is not understood, of an earlier time
            than the one before it, beyond the namespace or of zero length; its number is named.
    """
    lines, version, number, first = list[_Line](), 0, 0, 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), 1):
                if not lines and not version and text.strip() in _FIO:
                    version = _FIO[text.strip()]
                elif text.strip():
                    line = _parse(text, version, lines[-1][0] if lines else 0)
                    first = 0 if version else [*lines[:1], line][0][0]
                    _check(number, line, (first, lines[-1][0] if lines else first), namespace_pages * page_bytes)
                    lines.append(line)
    except OSError as error:
        raise DataError(f"cannot be read ({error}); check the path") from None
    except ValueError as error:
        raise DataError(f"{path}, line {number}: {error}; give MSR Cambridge's CSV or fio's iolog 2 or 3") from None
    rows = [(time - first, start, size, action == "write") for time, action, start, size in lines if action in _MOVES]
    if not rows:
        raise DataError(f"{path}: it has no reads or writes; give a trace that has, or leave it out")
    time, start, size, writes = np.array(rows, np.int64).reshape(-1, 4).T
    page, end = start // page_bytes, -(-(start + size) // page_bytes)
    return commands_table(len(rows)) | {"arrival_ns": time, "page": page, "pages": end - page, "writes": writes == 1}


def _parse(text: str, version: int, now: int) -> _Line:
    """Return time in nanoseconds, action, offset and length of a line; 0 for what an action does not have.

    Raises:
        ValueError: a field is missing, or is no number where one is due.
    """
    try:
        if not version:
            time, _, _, action, start, size, *_ = text.split(",")
            return int(time) * 100, action.lower(), int(start), int(size)
        words = text.split()
        if version == 3:
            now = int(words.pop(0)) * 1000
        offset, length, *_ = *map(int, words[2:4]), 0, 0
        return now + (offset * 1000 if words[1] == "wait" else 0), words[1], offset, length
    except (ValueError, LookupError):
        raise ValueError(
            f"{_FIELDS[version]}; times, offsets and lengths in whole numbers; it is {text.strip()[:80]!r}"
        ) from None


def _check(number: int, line: _Line, before: tuple[int, int], limit: int) -> None:
    """Return if a line is sound, of a namespace of `limit` bytes; `before` is when the first line was, and the last.

    Raises:
        ValueError: it is not.
    """
    time, action, offset, length = line
    faults = {
        f"the trace has more than {MOST_LINES} lines; cut it": number > MOST_LINES,
        f"the action {action!r} is not known": action not in _MOVES + _OTHERS,
        "the time goes back, or on by more than 36 years in all; sort the trace": (
            not before[1] <= time < before[0] + _MOST_NS
        ),
        f"offset {offset}, length {length}; the length must be positive, all within the namespace's {limit} bytes": (
            action in _MOVES and not offset >= 0 < length <= limit - offset
        ),
    }
    for fault, found in faults.items():
        if found:
            raise ValueError(fault)
