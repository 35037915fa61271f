"""The throttle of `protect`: its bounds, and that it parks, recovers and keeps the limit."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.storage.latency_throttle import (
    ALLOWED,
    INTERVAL_NS,
    LEAST,
    LISTENS,
    SILENT,
    LatencyThrottle,
)
from csd_emu.perfmodel.storage.read_throttle import ReadThrottle
from csd_emu.profiles.flash_geometry import SECOND
from firmware_agent.common.errors import ConfigurationError
from tests.support.examples import examples

MOST = 5e8
IN_TIME, LATE = 100_000, 3_000_000
INTERVALS = SECOND // INTERVAL_NS


def observe(throttle: ReadThrottle, interval: int, ended: int, late: int) -> float:
    """Let an interval pass in which so many commands ended, some of them late; return the rate after it."""
    throttle.observe((interval + 1) * INTERVAL_NS, np.repeat([IN_TIME, LATE], [ended - late, late]))
    return throttle.bytes_per_second


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 1)), min_size=1, max_size=250))
@settings(max_examples=examples(60), deadline=None)
def test_rates_keep_their_bounds_and_repeat(course: Sequence[tuple[int, float]]) -> None:
    first, again = LatencyThrottle(0.002, MOST), LatencyThrottle(0.002, MOST)
    for number, (ended, share) in enumerate(course):
        rate = observe(first, number, ended, int(ended * share))
        assert rate == 0 or LEAST * MOST / 2 <= rate <= MOST
        assert rate == observe(again, number, ended, int(ended * share))
        later = LatencyThrottle(0.002, MOST)
        later.restore(again.state())
        again = later


@given(st.integers(0, 500), st.integers(1, 300))
def test_training_is_parked_within_an_interval_of_late_commands(before: int, ended: int) -> None:
    throttle = LatencyThrottle(0.002, MOST)
    for number in range(before):
        observe(throttle, number, ended, 0)
    assert throttle.bytes_per_second > 0 or before <= LISTENS
    assert observe(throttle, before, ended, ended) == 0


@given(st.integers(1, 300), st.integers(1, 50))
@settings(max_examples=examples(15), deadline=None)
def test_training_recovers_to_the_highest_rate(ended: int, late_intervals: int) -> None:
    throttle = LatencyThrottle(0.002, MOST)
    for number in range(late_intervals):
        observe(throttle, number, ended, ended)
    rates = [observe(throttle, number, ended, 0) for number in range(late_intervals, 60 * INTERVALS)]
    assert rates[-1] == MOST
    assert rates.count(0.0) <= 6 * INTERVALS


def test_without_a_host_nothing_is_throttled_and_a_silent_one_changes_nothing() -> None:
    throttle = LatencyThrottle(0.002, MOST)
    assert [observe(throttle, number, 0, 0) for number in range(300)] == [MOST] * 300
    # It listens first; a host that is silent again is told apart by then.
    assert observe(throttle, 300, 1, 0) == 0
    rates = [observe(throttle, number, 0, 0) for number in range(301, 500)]
    assert rates == [0.0] * (SILENT - 1) + [MOST] * (200 - SILENT)
    assert throttle.silent
    throttle.wake()
    assert (throttle.silent, throttle.bytes_per_second) == (False, 0.0)


@given(st.integers(20, 300), st.integers(1, 30))
def test_late_commands_that_end_a_silence_slow_the_next_one_down(ended: int, silences: int) -> None:
    throttle = LatencyThrottle(0.002, MOST)
    for number in range(3 * INTERVALS):
        observe(throttle, number, ended, 0)
    number, rates = 3 * INTERVALS, list[float]()
    for late in [ended] * silences + [0] * 60:
        for number in range(number, number + SILENT + 1):  # noqa: B020
            rate = observe(throttle, number, 0, 0)
        assert throttle.silent
        rates.append(rate)
        throttle.wake()
        number += 1
        observe(throttle, number, ended, late)
    assert rates[0] == rates[-1] == MOST
    assert rates[: silences + 1] == sorted(rates[: silences + 1], reverse=True)
    assert rates[silences] <= max(MOST * 0.25**silences, LEAST * MOST)


def test_a_limit_that_the_host_breaks_by_itself_is_tried_again() -> None:
    throttle = LatencyThrottle(0.002, MOST)
    rates = [observe(throttle, number, 100, 5) for number in range(30 * INTERVALS)]
    assert 0.05 < rates.count(0.0) / len(rates) < 0.2
    # A host that keeps it later is protected again.
    number = 30 * INTERVALS
    for number in range(number, number + 12 * INTERVALS):  # noqa: B020
        rate = observe(throttle, number, 100, 5 if throttle.bytes_per_second > 0.02 * MOST else 0)
    assert rate <= 0.02 * MOST


@given(
    st.lists(st.integers(30, 300), min_size=1, max_size=6),
    st.floats(0.05, 3),
    st.floats(2, 8),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=examples(40), deadline=None)
def test_seconds_keep_the_limit_if_the_host_alone_does(
    loads: Sequence[int], bearable: float, steepness: float, seed: int
) -> None:
    draw, throttle = np.random.default_rng(seed), LatencyThrottle(0.002, MOST)
    rate, kept = throttle.bytes_per_second, list[bool]()
    for second in range(12):
        counts = np.zeros(2)
        for interval in range(INTERVALS):
            # Loads change by the second; at a rate that is bearable one command in two hundred is late.
            ended = loads[second % len(loads)]
            late = int(draw.binomial(ended, min(1.0, 0.0005 + 0.0045 * (rate / (bearable * MOST)) ** steepness)))
            counts += ended, late
            rate = observe(throttle, second * INTERVALS + interval, ended, late)
        kept.append(counts[1] <= ALLOWED * counts[0])
    assert all(kept[2:])


@pytest.mark.parametrize(("limit", "most"), [(0.0, 1e8), (-1.0, 1e8), (0.002, 0.0), (0.002, float("inf"))])
def test_impossible_figures_are_refused(limit: float, most: float) -> None:
    with pytest.raises(ConfigurationError, match=r"protect: .*p99"):
        LatencyThrottle(limit, most)
