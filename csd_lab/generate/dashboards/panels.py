"""Panels of dashboards, which ask Prometheus, with their unit and their clock, and short ways of writing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.prometheus_rules import WINDOW, Recorded

Kind = Literal["stat", "timeseries", "table"]
# Of the 24 columns of a dashboard.
WIDTH = 24


class Unit(StrEnum):
    """Units by the names that Grafana has for them; one of our own begins with ``suffix:``."""

    NUMBER = "none"
    SHARE = "percentunit"
    SECONDS = "s"
    BYTES = "decbytes"
    BYTES_PER_SECOND = "Bps"
    JOULES = "joule"
    WATTS = "watt"
    RECORDS = "suffix: records"
    RECORDS_PER_SECOND = "suffix: records/s"
    JOULES_PER_RECORD = "suffix: J/record"
    BYTES_PER_RECORD = "suffix: B/record"
    WALL_PER_DEVICE_SECOND = "suffix: s/s"
    COMMANDS_PER_SECOND = "iops"


class Clock(StrEnum):
    """Of what time a panel's figures are, in words for its description."""

    DEVICE = "Clock: device time (counted, modelled or wall: see the label clock)."
    WALL = "Clock: wall time of this machine; it says nothing of a drive."
    BOTH = "Clock: wall time of this machine over device time."
    NONE = "Clock: none is in it; only the axis is wall time."


class PanelNeeds(StrEnum):
    """Without what a question has no answer."""

    NOTHING = ""
    FEDERATED = "a federated job"
    SYNC = "a synchronous job"
    TABLE = "a calibration table of the model"
    MEMORY = "agents that report their memory"
    CAP = "host.power_cap"
    RAPL = "RAPL counters on this machine"
    SERVERS = "several servers that train together"
    HYPERVISOR = "drives that are virtual machines"
    HOST_IO = "a job with host_io"


@dataclass(frozen=True)
class PanelExpression:
    """One expression of a panel; `legend` may name labels, as in ``{{device}}``."""

    expression: str
    legend: str = ""
    needs: PanelNeeds = PanelNeeds.NOTHING


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: above it.
        targets: what it asks.
        unit: of every answer.
        clock: of every answer.
        meaning: what it shows, in sentences; the clock is added.
        kind: a number, lines, or a table.
        width, height: in cells of the dashboard's grid.
        stacked: whether lines add up.
    """

    title: str
    targets: Sequence[PanelExpression]
    unit: Unit
    clock: Clock
    meaning: str
    kind: Kind = "timeseries"
    width: int = 12
    height: int = 8
    stacked: bool = False

    @property
    def description(self) -> str:
        """What a reader of the panel is told."""
        return f"{self.meaning} {self.clock}"


@dataclass(frozen=True)
class Dashboard:
    """One dashboard; `rows` are titles and panels, `by_drive` gives it the variable ``$device``."""

    name: str
    title: str
    description: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    by_drive: bool = False

    @property
    def panels(self) -> list[Panel]:
        """All panels in order."""
        return [panel for _, panels in self.rows for panel in panels]


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
