"""The factorial of the tuners: its cases, and its figures on rates that are made of known effects."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.bench.joint_tuning.bench_tuner_factorial import (
    COMBINATIONS,
    FactorialCase,
    factorial_figures,
    list_scenarios,
)
from csd_lab.bench.joint_tuning.joint_cases import TUNERS

effects = st.floats(-0.5, 0.5)


@given(st.lists(effects, min_size=4, max_size=4), effects, st.lists(st.floats(0.1, 1e4), min_size=1, max_size=5))
def test_effects_that_rates_are_made_of_are_found(mains: list[float], both: float, bases: list[float]) -> None:
    signs = np.where(COMBINATIONS, 0.5, -0.5)
    logs = signs @ np.array(mains) + both * signs[:, 0] * signs[:, 3]
    cases = [FactorialCase("made", tuple((base * np.exp(logs)).tolist())) for base in bases]
    figures = factorial_figures(cases)
    names = list(TUNERS)
    for name, effect in zip(names, mains, strict=True):
        assert figures[f"main_{name}"] == pytest.approx(np.exp(effect))
    for name, figure in figures.items():
        if name.startswith("both"):
            known = name == f"both_{names[0]}_{names[3]}"
            assert figure == pytest.approx(np.exp(both) if known else 1.0)


def test_two_tuners_that_gain_the_same_thing_lose_one_gain_together() -> None:
    """Each alone doubles the rate, and so do both."""
    rates = tuple(2.0 if on[0] or on[1] else 1.0 for on in COMBINATIONS)
    one, other = list(TUNERS)[:2]
    assert factorial_figures([FactorialCase("made", rates)])[f"both_{one}_{other}"] == pytest.approx(0.5)


def test_the_worst_case_is_the_one_in_which_all_are_most_behind_one() -> None:
    best, behind = ([10.0 + sum(on) for on in COMBINATIONS] for _ in range(2))
    behind[1] = 28.0  # the last tuner alone; all four have 14
    cases = [FactorialCase("best", tuple(best)), FactorialCase("behind", tuple(behind))]
    assert factorial_figures(cases)["worst_over_best_single"] == pytest.approx(0.5)


def test_every_model_has_every_link_and_spread_once() -> None:
    scenarios = list_scenarios(quick=False)
    assert len({(each.model, each.bandwidth, each.counts) for each in scenarios}) == len(scenarios) == 18
    assert {sum(each.counts) for each in scenarios} == {8}
    assert {each.model for each in list_scenarios(quick=True)} < {each.model for each in scenarios}
