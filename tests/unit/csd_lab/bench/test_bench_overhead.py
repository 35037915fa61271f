"""Pairs of rounds, checked and not, and what they come to."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.bench.training.noop_rounds import Pair, interleave, judge, median_half_width

seconds = st.floats(1e-3, 10.0)


class Clock:
    """Takes a fixed time, and notes its turns."""

    def __init__(self, name: str, turns: list[str], length: float) -> None:
        self._name, self._turns, self._length = name, turns, length

    async def seconds(self) -> float:
        self._turns.append(self._name)
        return self._length


async def test_each_side_comes_first_every_other_time() -> None:
    turns: list[str] = []
    pairs = await interleave(Clock("on", turns, 2.0), Clock("off", turns, 1.0), 4)
    assert [pair[:2] for pair in pairs] == [(2.0, 1.0)] * 4
    assert turns == ["off", "on", "on", "off"] * 2


@given(off=st.lists(seconds, min_size=1, max_size=30), share=st.floats(0, 0.5))
def test_a_constant_share_is_found_whatever_the_rounds_take(off: list[float], share: float) -> None:
    pairs = [Pair(each * (1 + share), each, 3.0, 1.0) for each in off]
    figures = judge({"noop": pairs, "exchange": [Pair(each, each, 1.0, 1.0) for each in off]})
    assert figures["check_cost"] == figures["noop_check_cost"] == pytest.approx(share, abs=1e-9)
    assert figures["exchange_check_cost"] == 0
    assert (figures["noop_check_processor_seconds"], figures["exchange_check_processor_seconds"]) == (2.0, 0.0)
    assert figures["noop_seconds"] == statistics.median(off)


@given(values=st.lists(seconds, min_size=1, max_size=60))
def test_half_a_width_lies_between_0_and_half_the_range(values: list[float]) -> None:
    ordered = sorted(values)
    assert 0 <= median_half_width(ordered) <= (ordered[-1] - ordered[0]) / 2
