"""The trend of `bench soak`: finds a leak, finds none where there is none, whatever the noise and its dependence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.bench.endurance.soak import (
    ALLOWED_PER_HOUR,
    LEAST_SAMPLES,
    SERIES,
    WARM_UP,
    Trend,
    _RoundCounter,
    judge,
    thin,
    trend,
)
from firmware_agent.common.errors import ConfigurationError

VALUES = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.integers(16, 40), VALUES, VALUES)
def test_a_line_has_its_own_slope(count: int, slope: float, begin: float) -> None:
    found = trend(range(count), [begin + slope * each for each in range(count)])
    for value in (found.slope, found.low, found.high):
        assert value == pytest.approx(slope, abs=1e-6 * (1.0 + abs(begin) + abs(slope)))


@given(st.lists(VALUES, min_size=16, max_size=30), st.floats(0.1, 10.0), VALUES)
def test_units_move_it_and_what_is_added_does_not(values: list[float], factor: float, shift: float) -> None:
    x = list(range(len(values)))
    one, other = trend(x, values), trend(x, [factor * value + shift for value in values])
    close = 1e-6 * (1.0 + abs(shift) + max(abs(value) for value in values) * factor)
    assert other.slope == pytest.approx(one.scaled(factor).slope, abs=close)
    assert one.low <= one.slope <= one.high


@pytest.mark.slow
def test_the_interval_holds_what_it_promises_also_for_errors_that_depend_on_each_other() -> None:
    """Of 300 series without a trend, whose errors follow each other (AR(1), 0.8), a tenth at most seems to have one."""
    generator, wrong = np.random.default_rng(0), 0
    for _ in range(300):
        noise, value = generator.standard_normal(2400), 0.0
        series = [value := 0.8 * value + each for each in noise]
        found = trend(range(len(series)), series)
        wrong += not found.low <= 0.0 <= found.high
    assert wrong <= 30


def test_a_leak_is_found_under_noise_and_spikes() -> None:
    generator = np.random.default_rng(1)
    series = 1e8 + 2e3 * np.arange(4000.0) + 1e5 * generator.standard_normal(4000)
    series[::97] += 5e7
    found = trend(range(4000), series.tolist())
    assert found.low > 0.0
    assert found.slope == pytest.approx(2e3, rel=0.1)


@given(st.integers(0, LEAST_SAMPLES - 1))
def test_too_few_samples_are_no_trend(count: int) -> None:
    with pytest.raises(ValueError, match="too few"):
        trend(range(count), [0.0] * count)


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_only_what_is_certain_and_more_than_allowed_grows(
    slope: float, below: float, above: float, allowed: float
) -> None:
    found = Trend(slope, slope - below, slope + above)
    contains_zero_or_is_below = found.low <= 0.0 or found.high <= allowed
    assert found.grows(allowed) == (not contains_zero_or_is_below)


def samples(count: int, **growth: float) -> list[dict[str, float]]:
    """One a second; each series begins at 100 and grows by so much a round."""
    keys = {key: growth.get(name, 0.0) for name, key in SERIES.items()}
    return [{"seconds": float(n)} | {key: 100.0 + rate * n for key, rate in keys.items()} for n in range(count)]


def test_what_leaks_is_named_and_what_stands_still_is_not() -> None:
    figures = judge(samples(3600))
    assert figures["growing"] == 0.0
    assert {name for name in figures if not name.startswith("growing") and figures[name]} == set()
    leaking = judge(samples(3600, memory=0.01, threads=-0.01))
    assert leaking["growing"] == 1.0
    median = 100.0 + 0.01 * 3599 / 2
    assert leaking["memory_per_hour"] == pytest.approx(0.01 * 3600 / median, rel=0.01)
    assert leaking["memory_per_hour_low"] > ALLOWED_PER_HOUR
    assert leaking["threads_per_hour"] < 0.0


def test_a_run_that_was_too_short_says_so() -> None:
    with pytest.raises(ConfigurationError, match="run for longer"):
        judge(samples(int(LEAST_SAMPLES / (1 - WARM_UP)) - 4))


@given(st.integers(1, 9000), st.integers(1, 3000))
def test_samples_are_thinned_evenly(count: int, most: int) -> None:
    given_: list[Any] = [{"seconds": float(n)} for n in range(count)]
    kept = thin(given_, most)
    assert len(kept) <= most
    assert kept[0] == given_[0]
    assert count > most or kept == given_


def test_rounds_are_counted_as_lines_end(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"kind":"round","round":1}\n')
    counter = _RoundCounter(path)
    assert counter.count() == 0
    with path.open("ab") as file:
        for content, rounds in [
            (b'{"kind":"event"}\n', 0),
            (b'{"kind":"round","ro', 0),
            (b'und":2}\n{"kind":"round"}\n', 2),
            (b"", 0),
        ]:
            file.write(content)
            file.flush()
            assert counter.count() == rounds
