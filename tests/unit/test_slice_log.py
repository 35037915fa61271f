"""Slices of both directions on one clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.queue_watch import Watched
from firmware_agent.send_queue import Piece
from host.slice_log import SliceLog, Told


def watched(step: int, ready: float, left: float, read: float) -> Watched:
    return Watched(Piece(step, 0, 64, 32, "fc.weight"), ready, left, read)


@given(
    st.floats(-1e6, 1e6),
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 0.5)), min_size=1, max_size=20),
)
def test_a_drives_clock_is_put_on_the_hosts(offset: float, reports: list[tuple[float, float]]) -> None:
    """Each report left at a moment of the host's clock, and was so long under way."""
    log = SliceLog()
    for number, (left, under_way) in enumerate(reports):
        sent = watched(number, left - 3 - offset, left - 2 - offset, left - 1 - offset)
        log.add_pushed(Told("csd-00", (sent,), left - offset, left + under_way))
    fastest = min(under_way for _, under_way in reports)
    for (left, _), span in zip(reports, log.spans(), strict=True):
        assert span.direction == "push"
        assert span.begin_seconds - (left - 2) == pytest.approx(fastest, abs=1e-6)
        assert span.ready_seconds < span.begin_seconds < span.end_seconds


def test_what_the_host_sent_is_on_its_clock() -> None:
    log = SliceLog()
    assert not log
    log.add_pulled("csd-01", watched(4, 1.0, 2.0, 3.0))
    (span,) = log.spans()
    assert log
    assert (span.step, span.device, span.direction, span.tensor) == (4, "csd-01", "pull", "fc.weight")
    assert (span.offset, span.size_bytes) == (64, 32)
    assert (span.ready_seconds, span.begin_seconds, span.end_seconds) == (1.0, 2.0, 3.0)


def test_the_last_ones_are_kept() -> None:
    log = SliceLog(most=3)
    for number in range(10):
        log.add_pulled("csd-00", watched(number, 0.0, 1.0, 2.0))
        log.add_pushed(Told("csd-00", (watched(number, 0.0, 1.0, 2.0),), 3.0, 3.0))
    assert [span.step for span in log.spans()] == [7, 8, 9, 7, 8, 9]
