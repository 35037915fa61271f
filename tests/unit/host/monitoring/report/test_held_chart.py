"""The report's chart of what each drive holds, from what a run directory says."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from firmware_agent.common.errors import ConfigurationError
from host.core.partition import MOST_CLASSES, OTHERS, HeldRecords
from host.monitoring.report.charts.held_chart import held_chart
from host.monitoring.report.compare_baseline import compare
from host.monitoring.report.load_run import load_run
from host.monitoring.report.report_page import render
from host.monitoring.run_directory import HELD
from tests.support.pages import Page
from tests.support.records import array_rounds, write_run

NAMES = ("csd-00", "csd-01", "csd-02")
COUNTED = HeldRecords(list(NAMES), ["cat", "7"], [[3, 1], [0, 5], [2, 2]], 6, 4)


def write(folder: Path, held: Any) -> Path:
    write_run(folder, array_rounds(1, NAMES))
    versions = msgspec.json.decode((folder / "versions.json").read_bytes())
    (folder / "versions.json").write_bytes(msgspec.json.encode(versions | {HELD: held}))
    return folder


@pytest.mark.slow
def test_a_report_shows_what_each_drive_holds(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, COUNTED))
    assert run.held == COUNTED
    page = Page(render(run, compare(run)))
    page.assert_sound()
    for shown in (
        "Records on the drives",
        "Private records of each drive, by class: 4 to 5 records on each of 3 drives.",
        "6 public records lie on every drive beside them.",
        "4 records lie on no drive.",
    ):
        assert shown in page.text


@pytest.mark.slow
def test_a_run_of_before_has_no_such_section(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, array_rounds(1, NAMES)))
    assert run.held is None
    assert "Records on the drives" not in Page(render(run, compare(run))).text


@pytest.mark.parametrize("held", [[], {"drives": ["a"], "classes": [], "counts": []}, {"drives": 3}])
def test_damaged_counts_are_named(tmp_path: Path, held: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"versions\.json: held_records: is damaged"):
        load_run(write(tmp_path, held))


def test_bars_are_stacked_and_have_gaps_between_them() -> None:
    chart = held_chart(COUNTED)
    assert chart is not None
    cat, seven = chart.panes[0].curves
    assert (cat.name, seven.name) == ("cat", "class 7")
    assert (cat.x, cat.y) == ([-0.4, 0.4, 0.6, 1.4, 1.6, 2.4], [3, 0, 0, 0, 2, 0])
    assert seven.y == [1, 0, 5, 0, 2, 0]
    assert {each.fill for each in (cat, seven)} == {"stacked"}


def test_all_classes_look_different_and_of_many_drives_the_first_are_shown() -> None:
    classes = [*map(str, range(MOST_CLASSES)), OTHERS]
    chart = held_chart(HeldRecords([f"csd-{n}" for n in range(130)], classes, [[1] * len(classes)] * 130))
    assert chart is not None
    assert len({(each.colour, each.pattern) for each in chart.panes[0].curves}) == len(classes)
    assert {len(each.x) for each in chart.panes[0].curves} == {200}
    assert "30 more drives are not shown." in chart.caption


def test_without_classes_one_bar_and_without_private_records_no_chart() -> None:
    chart = held_chart(HeldRecords(["a", "b"], [], [[2], [1]]))
    assert chart is not None
    assert [each.name for each in chart.panes[0].curves] == ["records"]
    assert held_chart(HeldRecords(["a"], ["0"], [[0]], public=9)) is None
    assert held_chart(HeldRecords([], ["0"], [])) is None
