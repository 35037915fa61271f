"""The chart and the table of drives in service: there only where a drive served a host."""

import math
from pathlib import Path
from typing import Any

import pytest

from host.monitoring.charts.chart import MOST_LINES
from host.monitoring.report.charts.service_charts import protect_limit, service_chart
from host.monitoring.report.compare_baseline import compare
from host.monitoring.report.load_run import load_run
from host.monitoring.report.report_page import render
from tests.support.pages import Page
from tests.support.records import array_rounds, service_rounds, write_run

NAMES = ["csd-00", "csd-01"]


def page_of(folder: Path) -> Page:
    run = load_run(folder)
    page = Page(render(run, compare(run)))
    page.assert_sound()
    return page


@pytest.mark.slow
def test_a_report_says_what_drives_did_for_their_host(tmp_path: Path) -> None:
    job = {"host_io": {"protect": {"p99": 0.002}}}
    text = page_of(write_run(tmp_path, service_rounds(3, NAMES, failed_writes=7), devices=2, job=job)).text
    for expected in ("Host I/O", "limit of protect, 2 ms", "20,000", "81.9 MB/s", "4.5 ms", "40.0 %", "80.0 %", "21"):
        assert expected in text
    assert "Host I/O" not in page_of(write_run(tmp_path / "plain", array_rounds(1, NAMES), devices=2)).text


@pytest.mark.parametrize("count", [1, MOST_LINES, MOST_LINES + 1, 40])
def test_the_chart_has_a_line_a_drive_or_an_area_of_many(count: int) -> None:
    rounds = service_rounds(3, [f"csd-{number:02d}" for number in range(count)])
    chart = service_chart(rounds, 2e-3)
    assert chart is not None
    assert chart.x_range == (0.0, rounds[-1].end_seconds)
    latency, commands, busy = chart.panes
    assert (latency.target, commands.target, busy.target) == (2.0, None, None)
    assert [len(pane.curves) for pane in chart.panes] == [count if count <= MOST_LINES else 2] * 3
    assert max(y for each in latency.curves for y in each.y if y is not None) == pytest.approx(1.5 * (count + 2))
    assert {y for each in commands.curves for y in each.y} == {20_000.0}
    assert all(each.x[-1] == pytest.approx(rounds[-1].end_seconds, rel=1e-5) for each in latency.curves)


def test_single_seconds_lie_evenly_in_their_round_and_a_round_without_any_is_a_gap() -> None:
    first, _, last = service_rounds(3, ["csd-00"], second_p99_seconds=[1e-3, 3e-3])
    chart = service_chart([first, array_rounds(2, ["csd-00"])[1], last], None)
    assert chart is not None
    (line,) = chart.panes[0].curves
    assert line.y == [1.0, 3.0, None, 1.0, 3.0, 3.0]
    half = first.array_seconds / 2
    assert line.x == pytest.approx([0, half, 2 * half, 4 * half, 5 * half, 6 * half], rel=1e-5)
    assert "limit" not in chart.caption


@pytest.mark.parametrize("limit", [1e-4, 2e-3, 9.0])
def test_curves_and_limit_are_in_sight(limit: float) -> None:
    chart = service_chart(service_rounds(2, NAMES), limit)
    assert chart is not None
    highest = max(y for each in chart.panes[0].curves for y in each.y if y is not None)
    assert chart.panes[0].high is not None
    assert chart.panes[0].high > max(highest, 1e3 * limit)


def test_no_drive_in_service_is_no_chart() -> None:
    assert service_chart(array_rounds(2, NAMES), 1.0) is None


@pytest.mark.parametrize(
    ("section", "limit"),
    [
        ({"protect": {"p99": "2 ms"}}, 2e-3),
        ({"protect": {"p99": 0.002}}, 2e-3),
        ({"protect": None}, None),
        ({"protect": {"p99": "often"}}, None),
        ({}, None),
        (None, None),
        ("none", None),
    ],
)
def test_the_limit_is_read_as_written_or_resolved(section: Any, limit: float | None) -> None:
    found = protect_limit({} if section is None else {"host_io": section})
    assert found == limit or math.isclose(found or 0.0, limit or 0.0)
