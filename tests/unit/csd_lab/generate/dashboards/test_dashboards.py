"""The shipped dashboards: as far as they can be judged without Grafana."""

import json
import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from csd_lab.generate.dashboards import DASHBOARDS
from csd_lab.generate.dashboards.grafana import GRAFANA, SOURCE, files
from csd_lab.generate.dashboards.panels import COST, WIDTH, Clock, Dashboard, Panel, Unit
from tests.support.dimensions import dimension, units_of
from tests.support.expressions import list_expressions, read_expressions

FILES = files()
SHIPPED = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}
PANELS = [(dashboard, panel) for dashboard in DASHBOARDS for panel in dashboard.panels]
VARIABLES = {"__rate_interval", "__interval", "__range"}


def identify(value: Any) -> str:
    return value.name if isinstance(value, Dashboard) else value.title if isinstance(value, Panel) else str(value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_shipped_dashboards_are_those_of_the_code(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == FILES[path], "run python -m csd_lab.generate.metrics_files"


def test_no_file_lies_beside_them() -> None:
    assert set((GRAFANA / "dashboards").iterdir()) == set(FILES)
    names = {"array", "drive", "training", "communication", "energy", "servers"}
    assert {dashboard.name for dashboard in DASHBOARDS} == names


def test_what_is_listed_is_what_is_shipped() -> None:
    listed = {(each.origin, each.expression) for each in list_expressions()}
    read = {(each.origin, each.expression) for each in read_expressions()}
    assert listed == read
    assert {origin.partition("/")[0] for origin, _ in listed} == {*SHIPPED, "recording", "alert"}


@pytest.mark.parametrize("name", SHIPPED)
def test_panels_have_numbers_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = SHIPPED[name]["panels"]
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers)
    cells = [
        {(x, y) for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])}
        for p in (panel["gridPos"] for panel in panels)
    ]
    assert all(not first & second for first, second in combinations(cells, 2))
    assert all(0 <= x < WIDTH for place in cells for x, _ in place)
    assert all(high["gridPos"]["y"] <= low["gridPos"]["y"] for high, low in pairwise(panels))


@pytest.mark.parametrize("name", SHIPPED)
def test_all_asks_one_source_that_is_provisioned(name: str) -> None:
    path = GRAFANA / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(path.read_text(encoding="utf-8"))["datasources"]
    assert (source["uid"], source["type"]) == (SOURCE.uid, SOURCE.type_val)
    assert source["url"] == "http://prometheus:9090"
    asked = re.findall(r'"uid": "([^"]+)"', json.dumps([SHIPPED[name]["panels"], SHIPPED[name]["templating"]]))
    assert set(asked) == {source["uid"]}


@pytest.mark.parametrize("name", SHIPPED)
def test_targets_are_told_apart_and_variables_are_defined(name: str) -> None:
    dashboard = SHIPPED[name]
    defined = {variable["name"] for variable in dashboard["templating"].get("list", [])} | VARIABLES
    assert set(re.findall(r"\$(\w+)", json.dumps(dashboard["panels"]))) <= defined
    for panel in (panel for panel in dashboard["panels"] if panel["type"] != "row"):
        marks = [target["refId"] for target in panel["targets"]]
        assert marks
        assert len(set(marks)) == len(marks)
        assert all(target["expr"] for target in panel["targets"])
        assert all(target.get("legendFormat") for target in panel["targets"]) or len(marks) == 1


@pytest.mark.parametrize("name", SHIPPED)
def test_a_dashboard_needs_no_plugin_and_names_itself(name: str) -> None:
    dashboard = SHIPPED[name]
    assert {panel["type"] for panel in dashboard["panels"]} <= {"row", "stat", "timeseries", "table"}
    assert dashboard["uid"] == f"csd-emu-{name}"
    assert "id" not in dashboard  # Grafana gives one; two that come with one would clash


def test_the_provider_reads_the_folder_that_they_are_mounted_to() -> None:
    path = GRAFANA / "provisioning" / "dashboards" / "csd-emu.yml"
    (provider,) = yaml.safe_load(path.read_text(encoding="utf-8"))["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


def test_a_panel_has_the_unit_of_what_it_asks(subtests: pytest.Subtests) -> None:
    for dashboard, panel in PANELS:
        with subtests.test(dashboard=dashboard, panel=panel):
            for target in panel.targets:
                assert panel.unit in units_of(target.expression), (target.expression, dimension(target.expression))


def test_a_panel_names_its_clock(subtests: pytest.Subtests) -> None:
    """What is made of device seconds says so, what is made of wall seconds too, and nothing else does."""
    for dashboard, panel in PANELS:
        with subtests.test(dashboard=dashboard, panel=panel):
            assert panel.description.endswith(panel.clock)
            if panel.unit == Unit.SHARE and panel.clock == Clock.DEVICE:
                return  # of seconds over seconds
            for target in panel.targets:
                made_of = dimension(target.expression)
                joules = made_of == {"J": 1}  # of watts over time
                expected = {
                    (True, True): {Clock.BOTH},
                    (True, False): {Clock.DEVICE},
                    (False, True): {Clock.WALL},
                    (False, False): {Clock.DEVICE, Clock.WALL} if joules else {Clock.NONE},
                }["s" in made_of, "wall" in made_of]
                assert panel.clock in expected, target.expression


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=identify)
def test_every_dashboard_shows_wall_time_beside_device_time(dashboard: Dashboard) -> None:
    assert dashboard.rows[0] == COST
    clocks = {panel.clock for panel in COST[1]}
    assert {Clock.DEVICE, Clock.WALL, Clock.BOTH} <= clocks


@pytest.mark.parametrize(
    ("expression", "unit"),
    [
        ("sum(rate(csd_energy_joules_total[5m])) / sum(rate(csd_device_seconds_total[5m]))", Unit.WATTS),
        (
            "sum(rate(csd_wall_seconds_total[5m])) / sum(rate(csd_device_seconds_total[5m]))",
            Unit.WALL_PER_DEVICE_SECOND,
        ),
        ("sum(rate(csd_energy_joules_total[5m])) / sum(rate(csd_train_samples_total[5m]))", Unit.JOULES_PER_RECORD),
        ("sum(csd_energy_joules_total)", Unit.JOULES),
        ("count(csd_device_up)", Unit.NUMBER),
    ],
)
def test_units_follow_from_names(expression: str, unit: Unit) -> None:
    assert unit in units_of(expression)
    assert {each for each in Unit if each in units_of(expression)} <= {unit, Unit.SHARE}


def test_a_rate_over_wall_time_has_no_unit_at_all() -> None:
    """`rate()` alone says how fast this machine emulates."""
    assert not units_of("sum(rate(csd_energy_joules_total[5m]))")
    assert not units_of("sum(rate(csd_host_link_bytes_total[5m]))")
