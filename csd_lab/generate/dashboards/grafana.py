"""Dashboards as the JSON that Grafana reads, made with Grafana's own builders. Needs the packages of development."""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, StackingMode, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    Dashboard as Built,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    GridPos,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from csd_lab.generate.dashboards import DASHBOARDS
from csd_lab.generate.dashboards.panels import WIDTH, Dashboard, Panel

# As in images/grafana/provisioning/datasources.
SOURCE = DataSourceRef(type_val="prometheus", uid="csd-prometheus")
GRAFANA = Path(__file__).parents[3] / "images" / "grafana"
_TAG = "csd-emu"
_DRIVES = "label_values(csd_device_up, device)"

PanelBuilder = stat.Panel | table.Panel | timeseries.Panel


def files() -> dict[Path, str]:
    """Return what is written where."""
    return {GRAFANA / "dashboards" / f"{each.name}.json": render(each) for each in DASHBOARDS}


def render(described: Dashboard) -> str:
    """Return a dashboard's JSON."""
    built = json.dumps(_build(described), cls=JSONEncoder, indent=2, sort_keys=True)
    return built + "\n"


def _build(described: Dashboard) -> Built:
    builder = (
        dashboard.Dashboard(described.title)
        .uid(f"csd-emu-{described.name}")
        .description(described.description)
        .tags([_TAG])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("5s")
        .time("now-30m", "now")
        .timezone("browser")
        .link(dashboard.DashboardLink("csd-emu").type(DashboardLinkType.DASHBOARDS).tags([_TAG]).keep_time(True))
    )
    if described.by_drive:
        builder = builder.with_variable(
            dashboard.QueryVariable("device")
            .label("Drive")
            .query(_DRIVES)
            .datasource(SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.NATURAL_ASC)
        )
    number, top = 1, 0
    for title, panels in described.rows:
        builder = builder.with_row(dashboard.Row(title).id(number).grid_pos(GridPos(h=1, w=WIDTH, x=0, y=top)))
        number, top = number + 1, top + 1
        left = height = 0
        for panel in panels:
            if left + panel.width > WIDTH:
                left, top = 0, top + height
            height = panel.height
            place = GridPos(h=panel.height, w=panel.width, x=left, y=top)
            builder = builder.with_panel(_panel(panel).id(number).grid_pos(place))
            number, left = number + 1, left + panel.width
        top += height
    return builder.build()


def _panel(panel: Panel) -> PanelBuilder:
    builder: PanelBuilder
    if panel.kind == "stat":
        builder = stat.Panel()
    elif panel.kind == "table":
        builder = table.Panel()
    else:
        builder = _lines(panel)
    builder = builder.title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE)
    for number, target in enumerate(panel.targets):
        query = prometheus.Dataquery().expr(target.expression).ref_id(chr(ord("A") + number)).datasource(SOURCE)
        if target.legend:
            query = query.legend_format(target.legend)
        query = query.instant().format(PromQueryFormat.TABLE) if panel.kind == "table" else query.range()
        builder = builder.with_target(query)
    return builder


def _lines(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST)
    builder = (
        timeseries.Panel()
        .legend(legend)
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .line_width(1)
        .fill_opacity(20 if panel.stacked else 0)
        .min(0)
    )
    if panel.stacked:
        builder = builder.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return builder
