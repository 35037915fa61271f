"""Every expression that is shipped, with the dashboards and with Prometheus' rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards import DASHBOARDS
from csd_lab.generate.dashboards.panels import PanelNeeds
from tests import ROOT

# What Grafana's own variables stand for when an expression is asked without Grafana.
_GRAFANA = {"$__rate_interval": "1m", "$__interval": "5s", "$__range": "10m"}
_RULE_NEEDS = {
    rules.OF_CALIBRATION.name: PanelNeeds.TABLE,
    rules.ARRAY_STEP_SECONDS.name: PanelNeeds.SYNC,
    **{rule.name: PanelNeeds.SERVERS for rule in rules.OF_SERVERS},
    **{rule.name: PanelNeeds.HYPERVISOR for rule in rules.OF_HYPERVISORS},
}
_ALERT_NEEDS = {"CsdServerLost": PanelNeeds.SERVERS, "CsdServerUnreachable": PanelNeeds.SERVERS}


@dataclass(frozen=True, order=True)
class Expression:
    """An expression that is shipped.

    Attributes:
        origin: ``dashboard/panel``, ``recording/name`` or ``alert/name``.
        expression: in PromQL, with Grafana's variables in it.
        needs: without what it has no answer, in words; an alert has one only while it is true.
    """

    origin: str
    expression: str
    needs: PanelNeeds = PanelNeeds.NOTHING

    def asked(self, device: str) -> str:
        """Return it as Prometheus can be asked, of one drive."""
        text = self.expression.replace("$device", device)
        for variable, value in _GRAFANA.items():
            text = text.replace(variable, value)
        return text


def list_expressions() -> list[Expression]:
    """Return every expression of dashboards, recording rules and alerts."""
    return [
        *(
            Expression(f"{dashboard.name}/{panel.title}", target.expression, target.needs)
            for dashboard in DASHBOARDS
            for panel in dashboard.panels
            for target in panel.targets
        ),
        *(
            Expression(f"recording/{rule.name}", rule.expression, _RULE_NEEDS.get(rule.name, PanelNeeds.NOTHING))
            for rule in rules.RECORDED
        ),
        *(
            Expression(f"alert/{alert.name}", alert.expression, _ALERT_NEEDS.get(alert.name, PanelNeeds.NOTHING))
            for alert in rules.ALERTS
        ),
    ]


def read_expressions(images: Path = ROOT / "images") -> list[Expression]:
    """Return the same from the shipped files below `images`; what each needs is not in them."""
    return [
        *(each for path in sorted((images / "grafana" / "dashboards").glob("*.json")) for each in _of_dashboard(path)),
        *(each for path in sorted((images / "prometheus" / "rules").glob("*.yml")) for each in _of_rules(path)),
    ]


def _of_dashboard(path: Path) -> Iterator[Expression]:
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield Expression(f"{path.stem}/{panel['title']}", target["expr"])


def _of_rules(path: Path) -> Iterator[Expression]:
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            kind = "recording" if "record" in rule else "alert"
            yield Expression(f"{kind}/{rule.get('record') or rule['alert']}", rule["expr"])
