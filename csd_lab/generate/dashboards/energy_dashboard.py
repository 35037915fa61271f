"""Power and energy."""

from __future__ import annotations

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.common import COST, MOST, lines, of
from csd_lab.generate.dashboards.panels import Clock, Dashboard, PanelExpression, PanelNeeds, Unit
from csd_lab.generate.prometheus_rules import WINDOW

ENERGY = Dashboard(
    "energy",
    "csd-emu: energy",
    "Power and energy over device time, modelled from profiles, of which some values are assumed: docs/power.md.",
    [
        COST,
        (
            "Power",
            [
                lines(
                    "Power of the array",
                    [
                        PanelExpression(of(rules.ARRAY_WATTS), "array ({{clock}})"),
                        PanelExpression("csd_power_cap_watts", "cap", PanelNeeds.CAP),
                    ],
                    Unit.WATTS,
                    Clock.DEVICE,
                    f"Of everything, mean of the last {WINDOW}, and host.power_cap of the array file.",
                ),
                lines(
                    "Power by component",
                    "sum by (component) (csd_power_watts)",
                    Unit.WATTS,
                    Clock.DEVICE,
                    "Of everything, mean of the last round.",
                    "{{component}}",
                    stacked=True,
                ),
                lines(
                    "Hungriest",
                    f"topk({MOST}, {rules.WATTS.name})",
                    Unit.WATTS,
                    Clock.DEVICE,
                    f"The {MOST} drives, or the host, that draw most, over the last {WINDOW}.",
                    "{{device}} ({{clock}})",
                ),
            ],
        ),
        (
            "Energy",
            [
                lines(
                    "Energy per record",
                    [
                        PanelExpression(of(rules.JOULES_PER_RECORD), "everything"),
                        PanelExpression(f"max({rules.DEVICE_JOULES_PER_RECORD.name})", "the drive with most"),
                        PanelExpression(f"min({rules.DEVICE_JOULES_PER_RECORD.name})", "the drive with least"),
                    ],
                    Unit.JOULES_PER_RECORD,
                    Clock.NONE,
                    f"Host included, and of single drives alone, over the last {WINDOW}.",
                ),
                lines(
                    "Energy so far",
                    "sum by (component) (csd_energy_joules_total)",
                    Unit.JOULES,
                    Clock.DEVICE,
                    "Of everything, since the run began.",
                    "{{component}}",
                    stacked=True,
                ),
                lines(
                    "Energy of this machine",
                    "csd_machine_energy_joules_total",
                    Unit.JOULES,
                    Clock.WALL,
                    "Of its processors during the rounds, where they have RAPL counters: what emulation costs.",
                    "{{source}}",
                    needs=PanelNeeds.RAPL,
                ),
            ],
        ),
    ],
)
