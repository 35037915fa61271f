"""Traces of spans and slices: valid, complete, and no two in one row at a time."""

import itertools
import json
from collections import defaultdict
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.timeline import Activity, Link, compose
from host.core.slice_record import SliceRecord
from host.monitoring.run_trace import COMMUNICATION, QUEUE, chrome_trace, slice_trace


def one_slice(
    step: int, device: str, direction: str, tensor: str, offset: int, size: int, moments: list[float]
) -> SliceRecord:
    ready, begin, end = moments
    return SliceRecord(
        step=step,
        device=device,
        direction=direction,
        tensor=tensor,
        offset=offset,
        size_bytes=size,
        ready_seconds=ready,
        begin_seconds=begin,
        end_seconds=end,
    )


MOMENTS = st.lists(st.floats(0, 100), min_size=3, max_size=3).map(sorted)
SLICES = st.lists(
    st.builds(
        one_slice,
        st.integers(1, 5),
        st.sampled_from(["csd-00", "csd-01"]),
        st.sampled_from(["push", "pull"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 5),
        st.integers(1, 100),
        MOMENTS,
    ),
    max_size=40,
)


def by_phase(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


@given(SLICES)
def test_every_slice_waits_once_and_crosses_once(slices: list[SliceRecord]) -> None:
    trace = slice_trace(slices, "wall")
    msgspec.json.encode(trace)
    crossed = by_phase(trace, "X")
    assert len(crossed) == len(by_phase(trace, "b")) == len(by_phase(trace, "e")) == len(slices)
    assert sum(event["args"]["bytes"] for event in crossed) == sum(each.size_bytes for each in slices)
    assert all(event["args"]["clock"] == "wall" for event in crossed)
    assert {event["cat"] for event in crossed} <= {COMMUNICATION}
    assert {event["cat"] for event in by_phase(trace, "b")} <= {QUEUE}
    zero = min((each.ready_seconds for each in slices), default=0)
    assert sorted(event["ts"] for event in crossed) == sorted(1e6 * (each.begin_seconds - zero) for each in slices)


@given(SLICES)
def test_no_two_overlap_in_a_row(slices: list[SliceRecord]) -> None:
    rows = defaultdict(list)
    for event in by_phase(slice_trace(slices, "wall"), "X"):
        rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        spans.sort()
        assert all(begin >= end - 1e-3 for (_, end), (begin, _) in itertools.pairwise(spans))


def test_a_process_per_device_and_direction() -> None:
    slices = [one_slice(1, "csd-00", way, "fc.weight", 64, 10, [1.0, 2.0, 3.0]) for way in ("push", "pull")]
    names = [event["args"]["name"] for event in by_phase(slice_trace(slices, "modelled", "lab"), "M")]
    assert names == ["lab: csd-00 pull", COMMUNICATION, "lab: csd-00 push", COMMUNICATION]


def drive(device: str, receive: int, compute: float, send: int) -> Activity:
    return Activity(device, receive, 0, 0, {"forward": compute}, send, 1e9, 0.0, 1e9, 0.0)


def test_a_trace_has_one_row_per_device_and_says_whose_seconds_these_are() -> None:
    step = compose([drive("a", 100, 2.0, 0), drive("b", 0, 0.0, 50)], Link(100.0, 0.0), 0.5)
    trace = json.loads(json.dumps(chrome_trace(step.spans, "counted")))
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert sorted(names.values()) == ["a", "b", "host"]
    rows = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(rows) == len(step.spans)
    forward = next(event for event in rows if event["name"] == "forward")
    assert (names[forward["tid"]], forward["ts"], forward["dur"]) == ("a", 1e6, 2e6)
    assert {event["args"]["clock"] for event in rows} == {"counted"}
    assert sum(event["args"]["bytes"] for event in rows) == 150
