import json

from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.layer_work import Costs, exchange_bytes, scale_compute
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.simulated_step import simulate
from csd_emu.perfmodel.overlap.slice_trace import slice_trace
from firmware_agent.common.send_queue import TransferSettings
from tests.support.communication import blocks, links, models, sendings
from tests.support.slice_spans import slice_spans


@given(models(), links, sendings, blocks, st.integers(1, 3), st.sampled_from([1.0, 2.0]))
def test_every_slice_of_every_drive_is_ready_before_it_leaves_and_leaves_before_it_is_read(
    costs: Costs, link: SharedLink, sending: TransferSettings, block: int, drives: int, slower: float
) -> None:
    array = [costs] * drives + [scale_compute(costs, slower)]
    run = simulate(array, link, sending, 3, block_bytes=block, record=True)
    names = [f"csd-{number}" for number in range(drives + 1)]
    spans = list(slice_spans(run, costs, names))
    for span in spans:
        assert 0 < span.ready_seconds <= span.begin_seconds <= span.end_seconds
    for name in names:
        for way in ("push", "pull"):
            own = [span for span in spans if (span.device, span.direction, span.step) == (name, way, 0)]
            assert sum(span.size_bytes for span in own) == exchange_bytes(costs)
    first: dict[tuple[int, str], dict[str, float]] = {}
    for span in reversed(spans):
        if span.direction == "push":
            first.setdefault((span.step, span.tensor), {})[span.device] = span.end_seconds
    for span in spans:  # nothing comes back before all drives have sent the beginning of it
        if span.direction == "pull":
            assert span.ready_seconds >= max(first[span.step, span.tensor].values())
    assert json.dumps(slice_trace(spans, "counted"))
