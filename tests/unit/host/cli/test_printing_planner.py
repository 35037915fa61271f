"""The table of configurations: the best ones, the whole Pareto front, and intervals as they are."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.cli.placement_report import PlanReport
from host.cli.planner_command import SHOWN, print_devices, shown_rows
from host.core.figure_bands import Band
from host.policies.selection.cluster import Range
from host.policies.selection.selection_report import ConfigurationRow, LimitsRow, SelectionReport, TrialRow

RANKED = 20
BANDED = "step_seconds", "seconds", "watts", "joules", "edp"
NARROW = Range(10.0, 9.9, 10.1)


def row(number: int, seconds: Range, work: float = 100.0, **more: Any) -> ConfigurationRow:
    one = Range(1.0, 1.0, 1.0)
    fields = {"count": {"newport": number}, "batch": {"newport": 4}, "step_seconds": 1.0, "steps_measured": 0}
    fields["trained_records"] = work
    return ConfigurationRow(name=f"{number} newport", seconds=seconds, watts=one, joules=one, edp=one, **fields, **more)


def plan(
    front: list[int], seconds: Range = NARROW, feasible: int = RANKED, private: float = 0.0, **more: Any
) -> SelectionReport:
    ranked = [row(number, seconds, 100.0 + private * number) for number in range(1, RANKED + 1)]
    return SelectionReport(
        **{"clock": "modelled", "prefer": "time", "confidence": 0.95, "records": 100.0, "limits": LimitsRow()},
        **{"kinds": {}, "nodes": {"csd-00": 4}, "resting": [], "chosen": ranked[0], "ranked": ranked},
        **{"feasible": feasible, "front": [ranked[number] for number in front], "reasons": [], "sure": 1.0, "gap": 0.0},
        **{"trials": [], "trial_seconds": 0.0, "trial_joules": 0.0, "trial_steps": 0, "step": 0},
        **more,
    )


def printed(one: SelectionReport, capsys: pytest.CaptureFixture[str]) -> str:
    print_devices(PlanReport(model="m", input_shape=[1, 8, 8], array="lab", placement=None, devices=one))
    return capsys.readouterr().out


@given(st.sets(st.integers(0, RANKED - 1)))
def test_the_best_are_shown_once_and_all_of_the_front(front: set[int]) -> None:
    shown = [each.name for each in shown_rows(plan(sorted(front)))]
    best = [f"{number} newport" for number in range(1, SHOWN + 1)]
    assert shown[:SHOWN] == best
    assert shown[SHOWN:] == [f"{number + 1} newport" for number in sorted(front) if number >= SHOWN]


def test_rows_of_the_front_far_below_are_printed_and_the_others_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(plan([0, 14, 19], feasible=500), capsys)
    assert re.search(r"20 newport .*Pareto front", out)
    assert "19 newport" not in out
    assert f"{500 - SHOWN - 2} more keep to the limits" in out


def test_a_wide_interval_has_its_ends_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert "10 ±1.0%" in printed(plan([0]), capsys)
    out = printed(plan([0], Range(10.0, 3.0, 30.0)), capsys)
    assert re.search(r" 3 \.\. .*\n +30 ", out)
    assert "±" not in out


def test_records_have_a_column_where_not_all_are_within_reach_of_everyone(capsys: pytest.CaptureFixture[str]) -> None:
    whole = printed(plan([0]), capsys)
    assert "for 100 records" in whole
    assert not re.search(r"devices +records +/step", whole)
    out = printed(plan([0], private=7.0), capsys)
    assert "for the records that each can reach" in out
    assert re.search(r"devices +records +/step", out)
    assert re.search(r"2 newport +114 +8 ", out)


def banded(names: Collection[str]) -> SelectionReport:
    one = plan([0], at_ends={"low": "1 newport", "high": "2 newport"})
    bands = {name: Band(0.5, 8.25) for name in names}
    ranked = [row(1, NARROW, bands=bands), *one.ranked[1:]]
    return msgspec.structs.replace(one, ranked=ranked, chosen=ranked[0])


def test_bands_stand_below_their_figures_and_the_choice_at_their_ends_behind_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(banded(BANDED), capsys)
    lines = out.split("estimates for")[0].split("8 more keep")[0].splitlines()
    assert max(map(len, lines)) <= 100
    (at,) = (number for number, line in enumerate(lines) if line.strip().startswith("1 newport"))
    for line, part in zip(lines[at + 1 :], ("(0.5", "to 8.25)"), strict=False):
        assert line.count(part) == len(BANDED)
    assert " ".join(out.split()).count("in brackets: with the profiles' figures at either end of their bands") == 1
    assert "; at the slow end of the bands: 2 newport" in out
    same = printed(plan([0], at_ends={"low": "1 newport", "high": "1 newport"}), capsys)
    assert "; the same at both ends of the bands" in same


def test_a_step_of_a_trial_has_its_band_behind_it_where_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    fields: dict[str, Any] = {"steps": 3, "records": 8, "step_seconds": 0.5, "joules": 1.0, "why": ""}
    known, unknown = (
        TrialRow(name=name, bands=bands, **fields)
        for name, bands in (("one", {"step_seconds": Band(0.25, 1.5)}), ("two", {}))
    )
    out = printed(msgspec.structs.replace(plan([0]), trials=[known, unknown]), capsys)
    assert "one: 3 steps of 0.5 s (0.25 to 1.5); two: 3 steps of 0.5 s" in " ".join(out.split())


def test_a_plan_from_before_there_were_bands_is_printed_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(plan([0]), capsys)
    assert "bands" not in out
    assert "(" not in out.split("estimates for")[0]
