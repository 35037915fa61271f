"""Charts as SVG: a logarithmic x axis has numbers that people read."""

import re

import pytest

from host.monitoring.charts.chart import Chart, Pane, make_curve
from host.monitoring.report.charts.chart_svg import draw_chart


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "named"),
    [((8.0, 60.0), {"10", "20", "50"}), ((0.01, 900.0), {"0.1", "1", "10"}), ((10.2, 11.6), {"10.5", "11.1"})],
)
def test_the_numbers_of_a_logarithmic_axis_are_plain_ones(places: tuple[float, ...], named: set[str]) -> None:
    curve = make_curve("line", [(x, 1.5) for x in places], "s1")
    chart = Chart(name="c", title="t", caption="", told="", x_title="s", panes=[Pane(curves=[curve])], x_log=True)
    svg = draw_chart(chart).narrow
    assert "mathdefault" not in svg
    assert named <= set(re.findall(r">\s*([\d.]+)\s*</text>", svg))
