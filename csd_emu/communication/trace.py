"""Every slice and every layer's pass in Chrome's trace format: what overtook what, and what waited for it.

The records are the same for simulated and for real steps, so both are shown by the same code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from csd_emu.communication.costs import Costs
from csd_emu.communication.simulate import Simulated
from csd_emu.communication.simulation import PUSH

Lane = Literal["compute", "push", "pull"]
LANES: tuple[Lane, ...] = get_args(Lane)


class SliceSpan(NamedTuple):
    """A slice on its way, from when its turn came to when it was read, or a layer's pass.

    `lane` is one of `LANES`; of a pass `name` says which layer and phase, and `offset` and `size_bytes` are 0. `step`
    is the one whose gradients are pushed, or whose parameters are computed from them and pulled.
    """

    device: str
    lane: Lane
    name: str
    step: int
    offset: int
    size_bytes: int
    start_seconds: float
    end_seconds: float


def slice_spans(run: Simulated, costs: Costs, devices: Sequence[str]) -> list[SliceSpan]:
    """Return all that was recorded, drive by drive, each lane in the order of time; drives of a group do the same.

    Args:
        run: simulated with `record`.
        costs: of any of its drives, for the layers' names.
        devices: their names, in the order of the simulation.
    """
    spans = []
    for device, group in zip(devices, run.groups, strict=True):
        for passed in run.passes:
            if passed.group == group:
                step, layer, phase, begin, end = passed.computed
                spans.append(SliceSpan(device, "compute", f"{costs[layer].name} {phase}", step, 0, 0, begin, end))
        for direction, carried in run.transfers:
            if carried.group == group:
                piece = carried.piece
                lane: Lane = "push" if direction == PUSH else "pull"
                name = f"{piece.tensor}+{piece.offset}"
                times = carried.begin_seconds, carried.arrival_seconds
                spans.append(SliceSpan(device, lane, name, piece.exchange, piece.offset, piece.size_bytes, *times))
    return spans


def slices_trace(spans: Iterable[SliceSpan], clock: str, process: str = "csd-emu") -> dict[str, Any]:
    """Return the spans in Chrome's trace format, which Perfetto and chrome://tracing show.

    Each device is a process with a row per lane; slices that are under way together have rows of their own. Times are
    microseconds of `clock`.
    """
    ordered = sorted(spans, key=lambda span: (span.start_seconds, span.end_seconds))
    processes: dict[str, int] = {}
    rows: dict[tuple[str, str], list[float]] = {}
    events: list[dict[str, Any]] = []
    for span in ordered:
        pid = processes.setdefault(span.device, len(processes) + 1)
        row = _free_row(rows.setdefault((span.device, span.lane), []), span)
        events.append(
            {
                "name": span.name,
                "cat": span.lane,
                "ph": "X",
                "ts": span.start_seconds * 1e6,
                "dur": (span.end_seconds - span.start_seconds) * 1e6,
                "pid": pid,
                "tid": LANES.index(span.lane) * 1000 + row,
                "args": {"clock": clock, "step": span.step, "offset": span.offset, "bytes": span.size_bytes},
            }
        )
    return {
        "traceEvents": [*_names(processes, rows, process), *events],
        "displayTimeUnit": "ms",
        "otherData": {"clock": clock},
    }


def _free_row(ends: list[float], span: SliceSpan) -> int:
    """Return the first row of a lane on which nothing is left, and put the span there."""
    for row, end in enumerate(ends):
        if end <= span.start_seconds:
            ends[row] = span.end_seconds
            return row
    ends.append(span.end_seconds)
    return len(ends) - 1


def _names(
    processes: dict[str, int], rows: dict[tuple[str, str], list[float]], process: str
) -> Iterable[dict[str, Any]]:
    for device, pid in processes.items():
        yield {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": f"{process} {device}"}}
    for (device, lane), ends in rows.items():
        for row in range(len(ends)):
            tid = LANES.index(lane) * 1000 + row
            yield {"name": "thread_name", "ph": "M", "pid": processes[device], "tid": tid, "args": {"name": lane}}
