"""Published hit rates beside ours: rows say what they are, and the chart and tables are written whole or not at all."""

import csv
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from csd_lab.cli.reproduce import print_planner_reproduction
from csd_lab.reproduce.output import write_planner
from csd_lab.reproduce.planner_result import PlannerReport
from csd_lab.reproduce.reproduce_planner import OURS, make_report
from csd_lab.reproduce.verdict import UNDECIDABLE
from firmware_agent.common.errors import EnvironmentUnfit


def outcome(hit: bool, regret: float = 0.0, overhead: float = 0.01) -> dict[str, Any]:
    judged = {"hit": hit, "same": hit, "kept": True, "regret": regret, "overhead": overhead}
    return judged | {"trial_share": 0.05, "seconds_error": 0.02, "joules_error": -0.03}


def row(hit: bool, hard: bool) -> dict[str, Any]:
    return {
        "hard": hard,
        "ours": outcome(hit, 0.0 if hit else 0.2),
        "tables": outcome(False, 0.3),
        "rules": {"host only": outcome(not hard, 0.4 * hard)},
        "exhaustive": {"1": outcome(True, 0.0, 2.0)},
        "steps": {"1": outcome(False, 0.1), "5": outcome(hit)},
        "noise": {"0": outcome(True), "0.05": outcome(False, 0.5)},
    }


@pytest.fixture
def report() -> PlannerReport:
    return make_report([row(True, True), row(True, False), row(False, True), row(True, True)], 7, 12.5)


def test_ours_stands_beside_what_was_published(report: PlannerReport) -> None:
    gu, hapi = report.beside
    assert (gu.published, gu.ours) == (0.7667, 0.75)
    assert (hapi.published, hapi.ours) == (0.868, 0.75)
    assert [(row.source, row.published, row.verdict) for row in report.verdicts] == [
        (gu.source, gu.published, UNDECIDABLE),
        (hapi.source, hapi.published, UNDECIDABLE),
    ]
    assert "the method hits 100.0% (Gu et al.: 1 step of every configuration)" in report.verdicts[0].reason
    assert (report.cases, report.hard_cases, report.seed) == (4, 3, 7)
    assert report.hit_rate_hard == pytest.approx(2 / 3)
    shown = [*report.beside, *report.choosing, *report.sensitivity]
    assert {msgspec.to_builtins(row)["basis"] for row in shown} == {"simulated"}


def test_everyone_has_a_row_and_so_has_every_value_that_was_tried(report: PlannerReport) -> None:
    rates = {each.who: each.hit_rate for each in report.choosing}
    assert [each.hit_rate_same_configuration for each in report.choosing] == [each.hit_rate for each in report.choosing]
    assert rates[OURS] == 0.75
    assert rates["rule: host only"] == 0.25
    assert rates["our planner before any trial"] == 0
    assert next(each for each in report.choosing if each.who.startswith("Gu")).overhead == 2
    tried = {(each.of, each.value): each.hit_rate for each in report.sensitivity}
    assert tried == {("steps", 1): 0, ("steps", 5): 0.75, ("noise", 0): 1, ("noise", 0.05): 0}
    assert {each.energy_error for each in report.sensitivity} == {0.03}


@pytest.mark.slow
def test_files_are_written_and_say_the_same(report: PlannerReport, tmp_path: Path) -> None:
    written = write_planner(report, tmp_path / "out")
    assert [Path(file).name for file in written.files] == [
        "choosing.csv",
        "sensitivity.csv",
        "planner.svg",
        "planner.json",
    ]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "choosing.csv").read_text())))
    assert [each["who"] for each in rows] == [each.who for each in report.choosing]
    chart = (tmp_path / "out" / "planner.svg").read_bytes()
    assert b"hit rate" in chart
    assert b"steps of each trial" in chart
    assert chart == (Path(write_planner(report, tmp_path / "again").files[2])).read_bytes()


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_said(report: PlannerReport, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnfit, match="--output"):
        write_planner(report, tmp_path / "file" / "out")


def test_people_see_published_and_ours(report: PlannerReport, capsys: pytest.CaptureFixture[str]) -> None:
    print_planner_reproduction(report)
    printed = capsys.readouterr().out
    assert "76.7%" in printed
    assert "75.0% (simulated)" in printed
    assert "66.7%" in printed
