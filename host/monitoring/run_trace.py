"""The timeline of a run, and its slices, in Chrome's trace format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.perfmodel.timeline import COMMUNICATION as COMMUNICATION_PHASES
from csd_emu.perfmodel.timeline import Span
from host.core.device_time import WALL
from host.core.records import RoundRecord
from host.core.slice_record import SliceRecord
from host.monitoring.run_directory import SLICES_FILE, TRACE_FILE, write_result

QUEUE, COMMUNICATION = "QUEUE", "COMMUNICATION"
# A viewer cannot show more.
MOST_SPANS = 500_000


def write_trace(folder: Path, rounds: Iterable[RoundRecord], array: str) -> Path:
    """Write the last `MOST_SPANS` spans of the rounds, in the array's composed time, one row per device.

    Returns:
        Path: the file.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    clocks, spans, count = set[str](), deque[Span](maxlen=MOST_SPANS), 0
    for record in rounds:
        clocks.add(record.clock)
        spans.extend(record.spans)
        count += len(record.spans)
    path = folder / TRACE_FILE
    trace = chrome_trace(spans, "+".join(sorted(clocks)), array)
    if count > len(spans):
        trace["otherData"]["spans_left_out"] = count - len(spans)
    write_result(path, msgspec.json.encode(trace))
    return path


def write_slices(folder: Path, slices: Iterable[SliceRecord], array: str) -> Path:
    """Write the life of every slice, in seconds of the host's own clock; return the file's path.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    path = folder / SLICES_FILE
    write_result(path, msgspec.json.encode(slice_trace(slices, WALL, array)))
    return path


def chrome_trace(spans: Iterable[Span], clock: str, process: str = "csd-emu") -> dict[str, Any]:
    """Return the spans, one row per device.

    Times are microseconds of device time; `clock` says whose seconds these are.
    """
    rows: dict[str, int] = {}
    events = []
    for span in spans:
        row = rows.setdefault(span.device, len(rows) + 1)
        events.append(
            {
                "name": span.phase,
                "cat": "communication" if span.phase in COMMUNICATION_PHASES else "work",
                "ph": "X",
                "ts": span.start_seconds * 1e6,
                "dur": span.seconds * 1e6,
                "pid": 1,
                "tid": row,
                "args": {"clock": clock, "bytes": span.bytes},
            }
        )
    threads = [_name("thread_name", 1, row, device) for device, row in rows.items()]
    return _trace([_name("process_name", 1, 0, process), *threads, *events], clock)


def slice_trace(slices: Iterable[SliceRecord], clock: str, title: str = "csd-emu") -> dict[str, Any]:
    """Return the life of each slice; times are microseconds of the clock, counted from the first slice.

    Each device has two processes, ``push`` and ``pull``. In each, what is under way lies in rows, as few as it takes
    for no two slices to overlap in one, and what waits is shown as asynchronous spans.
    """
    ordered = sorted(slices, key=lambda each: (each.begin_seconds, each.end_seconds, each.device, each.direction))
    zero = min((each.ready_seconds for each in ordered), default=0.0)
    numbers = {way: number for number, way in enumerate(sorted({(each.device, each.direction) for each in ordered}), 1)}
    events: list[dict[str, Any]] = []
    for way, number in numbers.items():
        events.append(_name("process_name", number, 0, f"{title}: {way[0]} {way[1]}"))
        own = [each for each in ordered if (each.device, each.direction) == way]
        rows = _rows([(each.begin_seconds, each.end_seconds) for each in own])
        events += [
            _name("thread_name", number, row, COMMUNICATION if row == 1 else f"{COMMUNICATION} {row}")
            for row in sorted(set(rows))
        ]
        for each, row in zip(own, rows, strict=True):
            events += _events(each, number, row, zero, clock)
    return _trace(events, clock)


def _rows(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return a row, from 1, for each of the spans, which are in the order of their beginnings: the first free one."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    rows = []
    for begin, end in spans:
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (end, row))
        rows.append(row)
    return rows


def _events(each: SliceRecord, number: int, row: int, zero: float, clock: str) -> list[dict[str, Any]]:
    ready, begin, end = (1e6 * (moment - zero) for moment in (each.ready_seconds, each.begin_seconds, each.end_seconds))
    told = {"clock": clock, "step": each.step, "bytes": each.size_bytes, "offset": each.offset}
    label = f"{each.tensor}+{each.offset}"
    name = {"name": label, "pid": number, "args": told}
    waiting = name | {"cat": QUEUE, "id": f"{each.step}/{label}", "tid": 0}
    return [
        waiting | {"ph": "b", "ts": ready},
        waiting | {"ph": "e", "ts": begin},
        name | {"cat": COMMUNICATION, "ph": "X", "ts": begin, "dur": end - begin, "tid": row},
    ]


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _trace(events: list[dict[str, Any]], clock: str) -> dict[str, Any]:
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"clock": clock}}
