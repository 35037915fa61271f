import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.bench.bench_fidelity import step_ratio
from csd_lab.bench.harness import spread
from firmware_agent.common.errors import EnvironmentUnfit
from tests.support.calibration import make_table, with_cycles

RATIOS = {"forward": 2.0, "backward": 2.0, "update": 2.0, "encode": 2.0}


def test_the_ratio_of_a_step_comes_back() -> None:
    table = with_cycles(make_table({4: 0.02, 8: 0.04, 12: 0.06}), RATIOS)
    assert step_ratio(table, 8) == pytest.approx(2.0)


def test_cycles_that_were_not_counted_are_no_figure() -> None:
    with pytest.raises(EnvironmentUnfit, match="cycles were not counted"):
        step_ratio(make_table({4: 0.02, 8: 0.04}), 8)


@given(st.lists(st.floats(0.5, 10), min_size=1, max_size=6), st.floats(0.5, 3))
def test_a_spread_is_relative(values: list[float], factor: float) -> None:
    assert spread([value * factor for value in values]) == pytest.approx(spread(values), abs=1e-9)
    assert spread([values[0]] * 3) == 0
