"""Points of a sweep."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.sweep.sweep_points import MOST_RUNS, ValueRange, by_seed, list_points, parse_over, parse_seeds
from firmware_agent.common.errors import ConfigurationError

LISTS = st.dictionaries(
    st.sampled_from(["batch_size", "sync.precision", "rounds"]),
    st.lists(st.integers(1, 99), min_size=1, max_size=5, unique=True),
    min_size=1,
)


@given(LISTS)
def test_points_are_every_combination_once(over: dict[str, list[int]]) -> None:
    points = list_points(over)
    assert len(points) == math.prod(map(len, over.values()))
    assert {tuple(point.values()) for point in points} == set(itertools.product(*over.values()))
    assert all(list(point) == list(over) for point in points)


@given(LISTS, st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True))
def test_each_point_has_each_seed_and_seeds_change_last(over: dict[str, list[int]], seeds: list[int]) -> None:
    points = by_seed(list_points(over), seeds)
    assert [point["seed"] for point in points] == [seed for seed in seeds for _ in list_points(over)]
    assert len({tuple(point.items()) for point in points}) == len(points)


@given(st.integers(0, 1000), st.integers(1, 100))
def test_seeds_of_a_range_are_without_its_end(first: int, count: int) -> None:
    assert parse_seeds(f"{first}:{first + count}") == list(range(first, first + count))


def test_values_and_ranges_are_read() -> None:
    assert parse_over("batch_size=16,32, 64") == ("batch_size", [16, 32, 64])
    assert parse_over("sync.precision=fp16,fp32") == ("sync.precision", ["fp16", "fp32"])
    assert parse_over("placement=[a, b]") == ("placement", [["a", "b"]])
    assert parse_over("batch_size=8..64") == ("batch_size", ValueRange(8, 64, True))
    assert parse_over("learning_rate=0.001..0.1:log") == ("learning_rate", ValueRange(0.001, 0.1, False, True))


@pytest.mark.parametrize("text", ["batch_size", "=1", "a=", "a=1..", "a=..2", "a=2..1", "a=x..y", "a=0..1:log", "a=[1"])
def test_what_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--over"):
        parse_over(text)


@pytest.mark.parametrize("text", ["", "a", "3:3", "5:2", "1,1", "1,", f"0:{MOST_RUNS + 1}", "0:" + "9" * 30])
def test_what_are_no_seeds_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write FIRST:END, as in 0:5"):
        parse_seeds(text)


def test_a_sweep_has_some_runs_and_not_too_many() -> None:
    with pytest.raises(ConfigurationError, match=r"the sweep has 0 runs; it may have 1 to 10000"):
        list_points({"batch_size": []})
    with pytest.raises(ConfigurationError, match="the sweep has 1000000 runs"):
        list_points({"batch_size": range(1000), "rounds": range(1000)})
    with pytest.raises(ConfigurationError, match="the sweep has 10001 runs"):
        by_seed([{"batch_size": 1}], range(10_001))
    with pytest.raises(ConfigurationError, match="a range is sampled, not gone through"):
        list_points({"batch_size": ValueRange(1, 2, True)})
