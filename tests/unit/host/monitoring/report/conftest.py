"""Charts that are equal are drawn once for all tests of reports: each takes a tenth of a second."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from host.monitoring.report import report_page
from host.monitoring.report.charts.chart_svg import ChartSvg

AnyChart = TypeVar("AnyChart")


def _once(draw: Callable[[AnyChart], ChartSvg]) -> Callable[[AnyChart], ChartSvg]:
    drawn: dict[str, ChartSvg] = {}

    def draw_once(chart: AnyChart) -> ChartSvg:
        key = repr(chart)
        if key not in drawn:
            drawn[key] = draw(chart)
        return drawn[key]

    return draw_once


@pytest.fixture(scope="package", autouse=True)
def _drawn_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("draw_chart", "draw_timeline"):
            patch.setattr(report_page, name, _once(getattr(report_page, name)))
        yield
