"""The judge of the all-reduce formula: its figures."""

from typing import Any

import pytest

from csd_lab.bench.scaleout import ring_wall, server_switch
from firmware_agent.common.errors import EnvironmentUnfit


def test_errors_count_either_way_and_the_bias_says_which() -> None:
    samples: list[dict[str, Any]] = [
        {"predicted_seconds": predicted, "measured_seconds": 2.0} for predicted in (1.0, 1.8, 2.2)
    ]
    figures = ring_wall.figures_of(samples)
    assert figures == pytest.approx({"error_median": 0.1, "error_worst": 0.5, "bias_median": -0.1})


def test_whoever_may_make_no_namespace_is_told_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_switch, "can_make_namespaces", lambda: False)
    with pytest.raises(EnvironmentUnfit, match="run as root"), server_switch.server_switch(2):
        pass
