import pytest

from csd_lab.bench.bench_fidelity import step_ratio
from firmware_agent.common.errors import EnvironmentUnfit
from tests.support.calibration import make_table, with_cycles

RATIOS = {"forward": 2.0, "backward": 2.0, "update": 2.0, "encode": 2.0}


def test_the_ratio_of_a_step_comes_back() -> None:
    table = with_cycles(make_table({4: 0.02, 8: 0.04, 12: 0.06}), RATIOS)
    assert step_ratio(table, 8) == pytest.approx(2.0)


def test_cycles_that_were_not_counted_are_no_figure() -> None:
    with pytest.raises(EnvironmentUnfit, match="cycles were not counted"):
        step_ratio(make_table({4: 0.02, 8: 0.04}), 8)
