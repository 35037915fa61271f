"""What the bench of AutoByte on the wall clock makes of its runs."""

from typing import Any

import pytest

from csd_lab.bench.communication.autobyte.autobyte_wall import (
    AUTOBYTE,
    DEFAULT,
    HAND_SET,
    TURN,
    Noting,
    figures_of,
    make_contender,
)
from csd_lab.bench.communication.comm_cases import PRIORITY
from csd_lab.bench.communication.comm_runs import DROPPED_STEPS
from host.policies.transfer.autobyte import AutoByte
from host.policies.transfer.transfer_tuner import check_tunable
from tests.support.communication_tuning import FIRST, Knowing, drive


def run(name: str, *seconds: float) -> dict[str, Any]:
    return {"name": name, "step_seconds": [9.0] * DROPPED_STEPS + list(seconds)}


def test_figures_are_ratios_of_the_medians_of_runs_and_the_first_steps_do_not_count() -> None:
    runs = [run(HAND_SET, 1.0, 1.0), run(HAND_SET, 1.0, 1.0), run(HAND_SET, 50.0, 1.0)]
    runs += [run(AUTOBYTE, 3.0, 1.0), run(AUTOBYTE, 3.0, 1.0), run(AUTOBYTE, 0.1, 1.0)]
    figures = figures_of(runs + [run(DEFAULT, 1.5, 1.0)] * 3)
    assert figures["wall_over_hand_set"] == pytest.approx(2 / 4)
    assert figures["settled_over_hand_set"] == pytest.approx(1.0)
    assert figures["default_over_hand_set"] == pytest.approx(2 / 2.5)
    assert figures["wall_over_hand_set_low"] < 0.5 < figures["wall_over_hand_set_high"]


def test_by_hand_and_by_default_nothing_changes_and_autobyte_begins_with_the_default() -> None:
    sendings = {name: make_contender(name).sending(1) for name in TURN}
    assert sendings[HAND_SET] == PRIORITY
    assert sendings[AUTOBYTE] == sendings[DEFAULT] != PRIORITY
    check_tunable(sendings[DEFAULT])
    assert [make_contender(name).learns for name in TURN] == [False, True, False]


def test_changes_are_noted_as_they_are_announced() -> None:
    plain, noting = AutoByte(FIRST, Knowing()), Noting(AutoByte(FIRST, Knowing()))
    passed = drive(noting, [1e8] * 40)
    assert passed == drive(plain, [1e8] * 40)
    announced = [change for _, change in passed if change is not None]
    assert announced
    assert [each["slice_bytes"] for each in noting.changes] == [each.sending.slice_bytes for each in announced]
    assert [each["after_step"] + 1 for each in noting.changes] == [each.step for each in announced]
    assert noting.state() == plain.state()
