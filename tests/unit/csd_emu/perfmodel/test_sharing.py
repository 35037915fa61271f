"""Closed forms of the shared link against one pass over its events, and that against the definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.sharing import Link

links = st.builds(Link, st.floats(1e6, 1e10), st.just(0.0), st.booleans())
sizes = st.integers(0, 10**9) | st.just(0) | st.just(14_000_000)
rows = st.integers(1, 8).flatmap(
    lambda width: st.lists(st.lists(sizes, min_size=width, max_size=width), min_size=1, max_size=4)
)


def carry_slowly(sizes: list[int], begins: list[float], rate: float) -> list[float]:
    """Processor sharing as its definition has it: between events every transfer in progress gets an equal share."""
    left, ends, now = [float(size) for size in sizes], list(begins), 0.0
    while any(left):
        active = [index for index, size in enumerate(left) if size and begins[index] <= now]
        arrivals = [begin for index, begin in enumerate(begins) if left[index] and begin > now]
        if not active:
            now = min(arrivals)
            continue
        share = rate / len(active)
        least = min(left[index] for index in active)
        step = min([least / share, *(arrival - now for arrival in arrivals)])
        for index in active:
            left[index] -= step * share
        now += step
        for index in active:
            if left[index] < 1e-6:
                left[index], ends[index] = 0.0, now
    return ends


@given(
    transfers=st.lists(
        st.tuples(st.integers(0, 1000), st.integers(0, 40).map(lambda n: n / 4)), min_size=1, max_size=8
    ),
    rate=st.sampled_from([50.0, 100.0, 333.0]),
)
def test_a_shared_link_does_what_the_definition_of_processor_sharing_says(
    transfers: list[tuple[int, float]], rate: float
) -> None:
    sizes, begins = [size for size, _ in transfers], [begin for _, begin in transfers]
    assert Link(rate, 0.0).carry_each(sizes, begins) == pytest.approx(carry_slowly(sizes, begins, rate), abs=1e-6)


@given(table=rows, link=links, begins=st.lists(st.floats(0, 10) | st.just(0.0), min_size=4, max_size=4))
def test_transfers_that_begin_together_end_as_the_events_say_to_the_bit(
    table: list[list[int]], link: Link, begins: list[float]
) -> None:
    ends = link.carry_together(np.array(table, np.float64), np.array(begins[: len(table)])[:, None])
    for row, begin, together in zip(table, begins, ends.tolist(), strict=False):
        each = link.carry_each(row, [begin] * len(row))
        assert [end for end, size in zip(together, row, strict=True) if size] == [
            end for end, size in zip(each, row, strict=True) if size
        ]


@given(table=rows, link=links, data=st.data())
def test_the_last_of_transfers_ends_when_the_last_of_the_events_does(
    table: list[list[int]], link: Link, data: st.DataObject
) -> None:
    moments = st.floats(0, 10) | st.sampled_from([0.0, 1.0])
    begins = [[data.draw(moments) for _ in row] for row in table]
    filled = np.where(np.array(table) > 0, begins, -np.inf)
    last = link.carry_last(np.array(table, np.float64), filled).tolist()
    for row, when, end in zip(table, begins, last, strict=True):
        each = [done for done, size in zip(link.carry_each(row, when), row, strict=True) if size]
        assert end == pytest.approx(max(each, default=-np.inf), rel=1e-12)


def test_no_transfers_end_at_no_time() -> None:
    for shared in (True, False):
        link = Link(1.0, 0.0, shared)
        assert link.carry_together(np.zeros((2, 0))).shape == (2, 0)
        assert link.carry_last(np.zeros((2, 0)), np.zeros((2, 0))).tolist() == [-np.inf, -np.inf]
