"""Block traces in two public formats, as commands of the host.

* MSR Cambridge (Narayanan et al., "Write off-loading", FAST 2008; SNIA's IOTTA repository): lines of ``Timestamp,
  Hostname,DiskNumber,Type,Offset,Size,ResponseTime``; times are in 100 ns, offsets and sizes in bytes.
* fio's iolog, versions 2 and 3 (fio, HOWTO, "Trace file format"): lines of ``file action offset length``, with ``wait``
  for so many microseconds in version 2, and with a time in microseconds before each line in version 3. Offsets of all
  files count from the namespace's beginning; of the actions only reads and writes reach the drive.
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
_ACTIONS = frozenset({"read", "write", "add", "open", "close", "wait", "sync", "datasync", "trim"})
_MOST_NS = 2**60


def read_block_trace(path: Path, page_bytes: int, namespace_pages: int) -> Columns:
    """Return the commands of a trace, whose first arrives at 0, in pages that they touch.

    Raises:
        DataError: it cannot be read or is too long, or a line is not understood, of an earlier time than the one before
            it, beyond the namespace or of zero length; its number is named.
    """
    rows, version, now, first = list[tuple[int, int, int, bool]](), 0, 0, None
    number, limit = 0, namespace_pages * page_bytes
    try:
        with path.open(encoding="utf-8") as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                if number == 1 and (version := _FIO.get(line.strip(), 0)):
                    continue
                time, action, offset, length = _parse(line, version, now)
                first = time if first is None else first
                _check(number, time - max(now, first), action, (offset, length), limit)
                now = time
                if action in ("read", "write"):
                    rows.append((time - first, offset, length, action == "write"))
    except (OSError, ValueError, LookupError) as error:
        raise DataError(f"{path}, line {number}: {error}; a trace is MSR Cambridge's CSV or fio's iolog 2 or 3") from None
    table = np.array(rows, np.int64).reshape(-1, 4)
    commands = commands_table(len(rows))
    commands["arrival_ns"], commands["page"], commands["writes"] = table[:, 0], table[:, 1] // page_bytes, table[:, 3] == 1
    commands["pages"] = -(-(table[:, 1] + table[:, 2]) // page_bytes) - commands["page"]
    return commands


def _parse(line: str, version: int, now: int) -> tuple[int, str, int, int]:
    """Return time in nanoseconds, action, offset and length of a line; 0 for what an action does not have."""
    if not version:
        time, _, _, action, start, size, *_ = line.split(",")
        return int(time) * 100, action.lower(), int(start), int(size)
    words = line.split()
    if version == 3:
        now = int(words.pop(0)) * 1000
    offset, length, *_ = *map(int, words[2:4]), 0, 0
    return now + (offset * 1000 if words[1] == "wait" else 0), words[1], offset, length


def _check(number: int, later_ns: int, action: str, part: tuple[int, int], limit: int) -> None:
    """Return if a line is sound; `part` is its offset and length.

    Raises:
        ValueError: it is not.
    """
    if number > MOST_LINES:
        raise ValueError(f"the trace has more than {MOST_LINES} lines; cut it")
    if action not in _ACTIONS:
        raise ValueError(f"the action {action!r} is not known")
    if not 0 <= later_ns < _MOST_NS:
        raise ValueError("the time goes back, or on by more than 36 years; sort the trace")
    if action in ("read", "write") and not (part[0] >= 0 < part[1] <= limit - part[0]):
        raise ValueError(
            f"offset {part[0]} and length {part[1]}; the length must be positive, and the end within the namespace's "
            f"{limit} bytes"
        )
