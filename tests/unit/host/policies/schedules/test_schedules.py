import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import PluginError, PluginFailed
from host.config.job_file import JobConfig
from host.config.plugins.kinds import SCHEDULE
from host.config.plugins.plugin_loading import load_plugin
from host.policies import schedules
from host.policies.schedules import Schedule, make_schedule

OWN = """
def ramp(step, steps, peak=1.0):
    return peak * (step + 1) / steps

def late(step, steps):
    if step > 5:
        raise KeyError("beyond")
    return 1

def odd(step, steps, value):
    return float(value) if step == 2 else 1.0

def word(step, steps):
    return "fast"

class Stateful:
    def __init__(self, share=0.5):
        self.share = share

    def __call__(self, step, steps):
        return self.share ** step
"""
LENGTHS = st.integers(1, 300)


def section(value: Any) -> Any:
    content = {"model": "digits_cnn", "data": {"source": "digits"}, "schedule": value}
    return JobConfig.model_validate(content).schedule


def built_in(value: Any, steps: int) -> list[float]:
    made = make_schedule(section(value), None, steps)
    assert made is not None
    return [made.factor(number) for number in range(1, steps + 1)]


def own(folder: Path, value: dict[str, Any], steps: int) -> Schedule:
    (folder / "my.py").write_text(OWN)
    made = make_schedule(section(value), load_plugin(SCHEDULE, section(value), folder), steps)
    assert made is not None
    return made


@given(LENGTHS, st.floats(0, 1))
def test_cosine_falls_from_one_to_its_floor(steps: int, floor: float) -> None:
    factors = built_in({"name": "cosine", "floor": floor}, steps)
    assert factors[0] == pytest.approx(1.0)
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(factors))
    assert all(floor - 1e-12 <= factor <= 1 for factor in factors)
    half = floor + (1 - floor) / 2
    if steps % 2 == 0:
        assert factors[steps // 2] == pytest.approx(half)
    for step in range(1, steps):  # it is even about its middle
        assert factors[step] + factors[steps - step] == pytest.approx(1 + floor)


@given(LENGTHS, st.integers(1, 50), st.floats(0.1, 1))
def test_step_is_constant_for_so_long_and_then_times_gamma(steps: int, every: int, gamma: float) -> None:
    factors = built_in({"name": "step", "every": every, "gamma": gamma}, steps)
    for step in range(1, steps):
        ratio = gamma if step % every == 0 else 1.0
        assert factors[step] == pytest.approx(factors[step - 1] * ratio)


@given(LENGTHS, st.floats(0.1, 1))
def test_exponential_is_step_of_one(steps: int, gamma: float) -> None:
    factors = built_in({"name": "exponential", "gamma": gamma}, steps)
    assert factors == built_in({"name": "step", "every": 1, "gamma": gamma}, steps)


@given(LENGTHS, st.integers(1, 50), st.floats(0, 1))
def test_warmup_rises_in_equal_pieces_and_the_rest_is_cosine(steps: int, warmup: int, floor: float) -> None:
    linear = built_in({"name": "linear_warmup", "warmup": warmup}, steps)
    both = built_in({"name": "warmup_cosine", "warmup": warmup, "floor": floor}, steps)
    assert linear == [pytest.approx(min(1.0, (step + 1) / (warmup + 1))) for step in range(steps)]
    assert both[:warmup] == linear[:warmup]
    if steps > warmup:
        assert both[warmup:] == pytest.approx(built_in({"name": "cosine", "floor": floor}, steps - warmup))


@given(st.sampled_from(["cosine", {"name": "step", "every": 3}, {"name": "warmup_cosine", "warmup": 4}]), LENGTHS)
def test_a_run_that_turns_out_longer_keeps_the_last_factor(value: Any, steps: int) -> None:
    made = make_schedule(section(value), None, steps)
    assert made is not None
    assert made.factor(steps + 7) == made.factor(steps)


def test_no_schedule_is_none() -> None:
    assert make_schedule(None, None, 10) is None


def test_functions_and_classes_of_ones_own(tmp_path: Path) -> None:
    ramp = own(tmp_path, {"name": "my.py:ramp", "peak": 2.0}, 4)
    assert [ramp.factor(number) for number in range(1, 6)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert own(tmp_path, {"name": "my.py:Stateful"}, 3).factor(3) == 0.25


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({"name": "my.py:late"}, r"schedule 'my.py:late': step 6 of 10 .* KeyError: 'beyond' \(my.py, line 7\)"),
        *(
            ({"name": "my.py:odd", "value": value}, f"step 2 of 10 .* returned {value}; return a finite factor")
            for value in ("nan", "inf", "-1.0")
        ),
        ({"name": "my.py:word"}, "step 0 of 10 .* returned 'fast'"),
        ({"name": "my.py:odd"}, "schedule.value: is missing"),
        ({"name": "my.py:ramp", "steps": 3}, "schedule.steps: is given by the run"),
    ],
)
def test_a_factor_that_is_none_is_found_before_the_run(value: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=match):
        own(tmp_path, value, 10)


def test_so_many_are_tried_the_last_among_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MOST_TRIED", 3)
    seen: list[int] = []

    def factor(self: Schedule, number: int) -> float:
        seen.append(number)
        return 1.0

    monkeypatch.setattr(Schedule, "factor", factor)
    make_schedule(section("cosine"), None, 101)
    assert seen == [1, 51, 101]


def test_what_was_not_tried_fails_as_code_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MOST_TRIED", 2)
    made = own(tmp_path, {"name": "my.py:odd", "value": "nan"}, 10)
    assert math.isfinite(made.factor(2))
    with pytest.raises(PluginFailed, match="returned nan"):
        made.factor(3)
