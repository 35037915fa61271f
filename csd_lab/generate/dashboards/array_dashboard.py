"""All drives at a glance."""

from __future__ import annotations

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.common import COST, MOST, lines, of, spread, stat
from csd_lab.generate.dashboards.panels import Clock, Dashboard, Panel, PanelExpression, PanelNeeds, Unit
from csd_lab.generate.prometheus_rules import WINDOW

ARRAY = Dashboard(
    "array",
    "csd-emu: array",
    "All drives at a glance, however many there are.",
    [
        COST,
        (
            "Drives",
            [
                stat("Drives up", "sum(csd_device_up)", Unit.NUMBER, Clock.NONE, "Drives with a session."),
                stat(
                    "Drives lost",
                    'sum(csd_device_state{state="lost"})',
                    Unit.NUMBER,
                    Clock.NONE,
                    "Drives that have had a session, or should have one, and have none.",
                ),
                stat(
                    "Alerts",
                    'count(ALERTS{alertstate="firing"}) or vector(0)',
                    Unit.NUMBER,
                    Clock.NONE,
                    "Alerts that fire now; Prometheus lists them on its page /alerts.",
                ),
                stat(
                    "Power",
                    of(rules.ARRAY_WATTS),
                    Unit.WATTS,
                    Clock.DEVICE,
                    f"Of everything, mean of the last {WINDOW}.",
                ),
                stat(
                    "Energy per record",
                    of(rules.JOULES_PER_RECORD),
                    Unit.JOULES_PER_RECORD,
                    Clock.NONE,
                    f"Of everything, host included, over the last {WINDOW}.",
                ),
                stat("Accuracy", "max(csd_accuracy_ratio)", Unit.SHARE, Clock.NONE, "Of the last round's weights."),
                lines(
                    "Drives by state",
                    "sum by (state) (csd_device_state)",
                    Unit.NUMBER,
                    Clock.NONE,
                    "How many drives are in which state.",
                    "{{state}}",
                    stacked=True,
                ),
                lines(
                    "Throughput of a drive",
                    spread(rules.DEVICE_RECORDS),
                    Unit.RECORDS_PER_SECOND,
                    Clock.DEVICE,
                    f"Records per second of compute of the fastest, the median and the slowest drive, over the last "
                    f"{WINDOW}.",
                ),
                lines(
                    "Slowest drives",
                    f"bottomk({MOST}, {rules.DEVICE_RECORDS.name})",
                    Unit.RECORDS_PER_SECOND,
                    Clock.DEVICE,
                    f"The {MOST} drives with the fewest records per second of compute, over the last {WINDOW}.",
                    "{{device}} ({{clock}})",
                ),
                lines(
                    "Drives against their calibration",
                    spread(rules.OF_CALIBRATION, PanelNeeds.TABLE),
                    Unit.SHARE,
                    Clock.DEVICE,
                    f"Throughput as a share of what the drive's calibration table says, over the last {WINDOW}; below "
                    f"{rules.SLOW_RATIO:.0%} an alert fires.",
                ),
                lines(
                    "Time in which drives compute",
                    spread(rules.BUSY),
                    Unit.SHARE,
                    Clock.DEVICE,
                    f"Share of the array's time in which a drive computes, over the last {WINDOW}; the rest is flash, "
                    "link and waiting.",
                ),
                lines(
                    "Errors and rejoins",
                    [
                        PanelExpression("sum by (kind) (csd_errors_total)", "{{kind}}"),
                        PanelExpression("sum(csd_rejoins_total)", "rejoined"),
                    ],
                    Unit.NUMBER,
                    Clock.NONE,
                    "Since this host began to run.",
                ),
                Panel(
                    "What the drives are",
                    [PanelExpression("csd_device_info")],
                    Unit.NUMBER,
                    Clock.NONE,
                    "What each drive said of itself, its profile, and of what clock its seconds are.",
                    "table",
                    24,
                ),
            ],
        ),
    ],
)
