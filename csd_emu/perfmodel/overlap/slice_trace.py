"""The life of every slice in Chrome's trace format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

PUSH_NAME, PULL_NAME = "push", "pull"
QUEUE, COMMUNICATION = "QUEUE", "COMMUNICATION"


class SliceRecord(msgspec.Struct, frozen=True):
    """One slice of a step whose slices overlapped computing; a line of ``slices.jsonl``.

    Seconds are the host's monotonic clock. Those that a drive saw of its own slices are put on it by the least delay
    with which its messages came, so they are early by at least the link's latency.

    Attributes:
        step: whose gradients these are, or whose forward pass these weights are for.
        device: the drive.
        direction: ``push`` to the host, ``pull`` from it.
        tensor: its name.
        offset: of the first byte in it.
        size_bytes: how many.
        ready_seconds: its bytes were there, and waited.
        begin_seconds: it left the send queue.
        end_seconds: the other side had read it: of a pull, when the host was told so.
    """

    step: int
    device: str
    direction: str
    tensor: str
    offset: int
    size_bytes: int
    ready_seconds: float
    begin_seconds: float
    end_seconds: float


def slice_trace(slices: Iterable[SliceRecord], clock: str, title: str = "csd-emu") -> dict[str, Any]:
    """Return slices in Chrome's trace format; times are microseconds of the clock, counted from the first slice.

    Each device has two processes, ``push`` and ``pull``. In each, what is under way lies in rows, as few as it takes
    for no two slices to overlap in one, and what waits is shown as asynchronous spans.
    """
    ordered = sorted(slices, key=lambda each: (each.begin_seconds, each.end_seconds, each.device, each.direction))
    zero = min((each.ready_seconds for each in ordered), default=0.0)
    ways = sorted({(each.device, each.direction) for each in ordered})
    numbers = {way: number for number, way in enumerate(ways, 1)}
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
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"clock": clock}}


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
