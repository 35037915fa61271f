import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from csd_emu.communication.costs import Costs, compute_seconds, exchange_bytes
from csd_emu.communication.link import SharedLink
from csd_emu.communication.simulate import simulate
from csd_emu.communication.trace import LANES, slice_spans, slices_trace
from firmware_agent.send_queue import Sending
from tests.communication import links, models, sendings


@given(models(), links, sendings, st.integers(1, 3))
def test_every_pass_and_every_slice_is_in_the_trace(
    costs: Costs, link: SharedLink, sending: Sending, drives: int
) -> None:
    names = [f"csd-{number}" for number in range(drives)]
    spans = slice_spans(simulate([costs] * drives, link, sending, 3, record=True), costs, names)
    for name in names:
        own = [span for span in spans if span.device == name]
        for lane in ("push", "pull"):
            sent = [span for span in own if span.lane == lane and span.step == 0]
            assert sum(span.size_bytes for span in sent) == exchange_bytes(costs)
        first = [span for span in own if span.lane == "compute" and span.step == 0]
        assert abs(sum(s.end_seconds - s.start_seconds for s in first) - compute_seconds(costs)) < 1e-9
    trace = json.loads(json.dumps(slices_trace(spans, "counted")))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(spans)
    assert {event["cat"] for event in events} == set(LANES)
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert named == {(event["pid"], event["tid"]) for event in events}
    for place in named:  # nothing covers anything else
        row = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if (e["pid"], e["tid"]) == place)
        assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(row))
