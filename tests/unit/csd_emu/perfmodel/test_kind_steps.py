"""The closed form over kinds is that over devices, if devices of a kind do not differ."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.kind_steps import KindWork, Paces, last_send
from csd_emu.perfmodel.sharing import Link
from csd_emu.perfmodel.step import DeviceWork, DriveFigures, time_step

latencies = st.floats(0, 1e-2)
links = st.builds(Link, st.floats(1e6, 1e10), latencies, st.booleans())
kinds = st.lists(
    st.tuples(st.integers(0, 4), st.floats(0, 10) | st.sampled_from([0.0, 1.0]), st.floats(1e6, 1e10), latencies),
    min_size=1,
    max_size=4,
)


@given(kinds=kinds, link=links, size=st.integers(0, 10**9))
def test_without_differences_it_is_the_step_of_the_devices(
    kinds: list[tuple[int, float, float, float]], link: Link, size: int
) -> None:
    drives, compute, rates, delays = (np.array(column) for column in zip(*kinds, strict=True))
    count, nothing = drives.sum(), np.zeros(len(drives))
    work = KindWork(drives[None] * 1.0, size, nothing[None], compute[None])
    last = last_send(work, DriveFigures(nothing + 1, nothing, rates, delays), link, Paces())
    expanded = [np.repeat(column, drives) for column in (rates, delays, compute)]
    none, sizes = np.zeros(count), np.full(count, float(size))
    figures = DriveFigures(none + 1, none, *expanded[:2])
    want = time_step(DeviceWork(sizes, expanded[2], sizes), figures, link).end_seconds
    assert last[0] == pytest.approx(float(want), rel=1e-9)


def test_the_slowest_of_a_kind_that_comes_behind_all_others_has_the_link_for_itself() -> None:
    link = Link(8.0, 0.25)
    figures = DriveFigures(np.array([4.0]), np.array([0.25]), np.array([32.0]), np.array([0.0]))
    work = KindWork(np.array([[5.0]]), 4, np.array([[3.0]]), np.array([[10.0]]))
    begins = 5 * 0.5 + 0.25 + 3 / 4 + 0.25
    last = last_send(work, figures, link, Paces(late=1.5))
    assert last[0] == begins + 15 + 0.5 + 0.25
    last = last_send(work, figures, link, Paces(late=1.1))
    assert last[0] == begins + 10 + 5 * 0.5 + 0.25
    last = last_send(work, figures, link, Paces(late=1.1), bandwidth=0.5)
    assert last[0] == begins + 2.5 + 10 + 5 * 1.0 + 0.25
