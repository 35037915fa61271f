"""What the throttles bench asks for, and its figure."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.bench import emulation as throttles
from csd_lab.bench import harness
from csd_lab.bench.emulation import (
    LONGEST_SECONDS,
    READ_RATES,
    RUNS,
    SEND_RATES,
    SHORTEST_SECONDS,
    draw,
    worst_error,
)


@given(seed=st.integers(0, 2**32))
def test_every_rate_is_asked_for_equally_often_over_drawn_seconds(seed: int) -> None:
    asked = draw(random.Random(seed))
    wanted = {("io.max", rate): RUNS for rate in READ_RATES} | {("tbf", rate): RUNS for rate in SEND_RATES}
    assert Counter((each.throttle, each.rate) for each in asked) == wanted
    assert all(SHORTEST_SECONDS - 1e-6 <= each.size_bytes / each.rate <= LONGEST_SECONDS for each in asked)
    assert draw(random.Random(seed)) == asked
    assert draw(random.Random(seed + 1)) != asked


@given(errors=st.lists(st.floats(-0.9, 10.0), min_size=1), rate=st.floats(1.0, 1e12))
def test_the_worst_error_is_the_largest_either_way(errors: list[float], rate: float) -> None:
    samples = [{"asked_bytes_per_second": rate, "seen_bytes_per_second": rate * (1 + error)} for error in errors]
    assert worst_error(samples) == pytest.approx(max(map(abs, errors)), abs=1e-9)


def test_the_report_names_the_clock_of_a_guest_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    sample: dict[str, Any] = {"asked_bytes_per_second": 100, "seen_bytes_per_second": 99.0}
    monkeypatch.setattr(harness.Bench, "on_machines", lambda *_: {"idle": [sample], "loaded": [sample]})
    monkeypatch.setattr(harness, "describe_machine", lambda _: {})
    made = throttles.bench_throttles(harness.Bench("throttles", Paths.default(), Silent(), 0))
    assert made.clock == "wall"  # counted would promise figures that do not depend on load
    assert made.figures == {"worst_error_idle": pytest.approx(0.01), "worst_error_loaded": pytest.approx(0.01)}
