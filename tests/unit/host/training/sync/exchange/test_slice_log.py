"""The log of a step's slices: what a drive saw of its own, on the host's clock."""

import pytest

from firmware_agent.common.frames.step_frames import LeftSlice, Timed
from host.training.sync.exchange.slice_log import SliceLog


def test_a_report_that_comes_late_moves_no_slice_behind_its_arrival() -> None:
    """The drive's clock is 100 s behind; slices take 10 ms and more, its report 500 ms, for it waits behind them."""
    moments = iter((100.01, 100.03, 100.06, 100.6))
    log = SliceLog(step=1, device="csd-00", now=lambda: next(moments), names=["w"])
    for end in (8, 16, 24):
        log.arrive("w", end)
    left = [
        LeftSlice(tensor=0, offset=8 * number, size_bytes=8, ready_seconds=0.0, begin_seconds=0.01 * number)
        for number in range(3)
    ]
    log.take(Timed(step=1, now_seconds=0.1, end_seconds=0.05, slices=left, tensors=[]))
    took = [each.end_seconds - each.begin_seconds for each in log.records()]
    assert took == pytest.approx([0.0, 0.01, 0.03])
