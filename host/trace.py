"""The timeline of a run, and its slices, as files that Perfetto and chrome://tracing show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from csd_emu.communication.trace import SliceSpan, slice_trace
from csd_emu.timeline import chrome_trace
from host.device_time import WALL
from host.records import RoundRecord, SliceRecord
from host.run_directory import SLICES_FILE, TRACE_FILE, write_result


def write_trace(folder: Path, rounds: Sequence[RoundRecord], array: str) -> Path:
    """Write all spans of the rounds, in the array's composed time, one row per device; return the file's path.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    clock = "+".join(sorted({record.clock for record in rounds}))
    spans = [span for record in rounds for span in record.spans]
    path = folder / TRACE_FILE
    write_result(path, msgspec.json.encode(chrome_trace(spans, clock, array)))
    return path


def write_slices(folder: Path, slices: Iterable[SliceRecord], array: str) -> Path:
    """Write the life of every slice, in seconds of the host's own clock; return the file's path.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    spans = [SliceSpan(*msgspec.structs.astuple(each)) for each in slices]
    path = folder / SLICES_FILE
    write_result(path, msgspec.json.encode(slice_trace(spans, WALL, array)))
    return path
