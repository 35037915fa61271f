"""The timeline of a run, and its slices, as files that Perfetto and chrome://tracing show."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from csd_emu.perfmodel.timeline import Span
from host.core.device_time import WALL
from host.core.records import RoundRecord
from host.core.slice_record import SliceRecord
from host.monitoring.chrome_trace import chrome_trace, slice_trace
from host.monitoring.run_directory import SLICES_FILE, TRACE_FILE, write_result

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
