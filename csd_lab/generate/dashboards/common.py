"""Panels that all dashboards share, and short ways of writing others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.panels import Clock, Panel, PanelExpression, PanelNeeds, Unit
from csd_lab.generate.prometheus_rules import WINDOW, Recorded

DRIVE = '{device="$device"}'
MOST = 10


def of(rule: Recorded, selector: str = "") -> str:
    """Return a rule's series, or those that `selector` chooses."""
    return rule.name + selector


def stat(title: str, expression: str, unit: Unit, clock: Clock, meaning: str, width: int = 4, **more: Any) -> Panel:
    """Return one number."""
    return Panel(title, [PanelExpression(expression, **more)], unit, clock, meaning, "stat", width, 4)


def lines(
    title: str,
    targets: str | Sequence[PanelExpression],
    unit: Unit,
    clock: Clock,
    meaning: str,
    legend: str = "",
    **more: Any,
) -> Panel:
    """Return lines over time: of one expression, or of several targets."""
    chosen = (
        [PanelExpression(targets, legend, more.pop("needs", PanelNeeds.NOTHING))]
        if isinstance(targets, str)
        else targets
    )
    return Panel(title, chosen, unit, clock, meaning, **more)


def spread(rule: Recorded, needs: PanelNeeds = PanelNeeds.NOTHING) -> list[PanelExpression]:
    """Lines that stay three, however many drives there are."""
    return [
        PanelExpression(f"max({rule.name})", "fastest", needs),
        PanelExpression(f"quantile(0.5, {rule.name})", "median", needs),
        PanelExpression(f"min({rule.name})", "slowest", needs),
    ]


COST: tuple[str, Sequence[Panel]] = (
    "Device time and what it costs",
    [
        stat(
            "Array time",
            "sum by (clock) (csd_round_duration_seconds_sum)",
            Unit.SECONDS,
            Clock.DEVICE,
            "How long the array has trained, composed of compute, flash and link.",
            legend="{{clock}}",
        ),
        stat(
            "Wall time",
            "sum(csd_wall_seconds_total)",
            Unit.SECONDS,
            Clock.WALL,
            "How long this machine took to emulate that, drives being up.",
        ),
        stat(
            "Cost of emulation",
            of(rules.WALL_PER_ARRAY_SECOND),
            Unit.WALL_PER_DEVICE_SECOND,
            Clock.BOTH,
            f"Wall seconds per second of the array, over the last {WINDOW}.",
        ),
        stat(
            "Array throughput",
            of(rules.ARRAY_RECORDS),
            Unit.RECORDS_PER_SECOND,
            Clock.DEVICE,
            f"Records per second of the array, flash, link and waiting included, over the last {WINDOW}.",
        ),
        stat(
            "Emulation speed",
            of(rules.WALL_RECORDS),
            Unit.RECORDS_PER_SECOND,
            Clock.WALL,
            f"Records per wall second, over the last {WINDOW}: how fast this machine emulates.",
        ),
        stat("Last round", "max(csd_round)", Unit.NUMBER, Clock.NONE, "Number of the last round that has ended."),
    ],
)
