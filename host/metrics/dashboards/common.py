"""Panels that all dashboards share, and short ways of writing others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from host.metrics import rules
from host.metrics.dashboards.panels import Clock, Needs, Panel, Target, Unit
from host.metrics.rules import WINDOW, Recorded

DRIVE = '{device="$device"}'
MOST = 10


def of(rule: Recorded, selector: str = "") -> str:
    """Return a rule's series, or those that `selector` chooses."""
    return rule.name + selector


def stat(title: str, expression: str, unit: Unit, clock: Clock, meaning: str, width: int = 4, **more: Any) -> Panel:
    """Return one number."""
    return Panel(title, [Target(expression, **more)], unit, clock, meaning, "stat", width, 4)


def lines(
    title: str, targets: str | Sequence[Target], unit: Unit, clock: Clock, meaning: str, legend: str = "", **more: Any
) -> Panel:
    """Return lines over time: of one expression, or of several targets."""
    chosen = [Target(targets, legend, more.pop("needs", Needs.NOTHING))] if isinstance(targets, str) else targets
    return Panel(title, chosen, unit, clock, meaning, **more)


def spread(rule: Recorded, needs: Needs = Needs.NOTHING) -> list[Target]:
    """Lines that stay three, however many drives there are."""
    return [
        Target(f"max({rule.name})", "fastest", needs),
        Target(f"quantile(0.5, {rule.name})", "median", needs),
        Target(f"min({rule.name})", "slowest", needs),
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
            of(rules.ARRAY_IMAGES),
            Unit.IMAGES_PER_SECOND,
            Clock.DEVICE,
            f"Images per second of the array, flash, link and waiting included, over the last {WINDOW}.",
        ),
        stat(
            "Emulation speed",
            of(rules.WALL_IMAGES),
            Unit.IMAGES_PER_SECOND,
            Clock.WALL,
            f"Images per wall second, over the last {WINDOW}: how fast this machine emulates.",
        ),
        stat("Last round", "max(csd_round)", Unit.NUMBER, Clock.NONE, "Number of the last round that has ended."),
    ],
)
