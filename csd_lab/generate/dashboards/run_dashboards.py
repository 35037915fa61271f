"""Dashboards of a whole run: the array at a glance, training, communication, and energy."""

from __future__ import annotations

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.panels import (
    COST,
    MOST,
    Clock,
    Dashboard,
    Panel,
    PanelExpression,
    PanelNeeds,
    Unit,
    lines,
    of,
    spread,
    stat,
)
from csd_lab.generate.dashboards.service_panels import HOST_IO_OF_ARRAY
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
        HOST_IO_OF_ARRAY,
    ],
)


TRAINING = Dashboard(
    "training",
    "csd-emu: training",
    "How well the model learns, and in what steps.",
    [
        COST,
        (
            "Model",
            [
                lines(
                    "Accuracy",
                    "csd_accuracy_ratio",
                    Unit.SHARE,
                    Clock.NONE,
                    "Of each round's weights on held-out records.",
                    "held-out records",
                ),
                lines("Loss", "csd_loss", Unit.NUMBER, Clock.NONE, "Mean cross-entropy.", "{{set}}"),
                lines(
                    "Participants",
                    [
                        PanelExpression("csd_round_participants", "took part"),
                        PanelExpression("csd_round_stragglers_total", "late, summed over rounds"),
                        PanelExpression("sum(csd_mixed_steps_total)", "mixed steps, summed", PanelNeeds.SYNC),
                    ],
                    Unit.NUMBER,
                    Clock.NONE,
                    "Devices whose weights or gradients the last round holds; late ones, and steps that hold part of a "
                    "lost drive's gradient, summed since the run began.",
                ),
                lines(
                    "Batch sizes",
                    [
                        PanelExpression("max(csd_batch_size)", "largest"),
                        PanelExpression("quantile(0.5, csd_batch_size)", "median"),
                        PanelExpression("min(csd_batch_size)", "smallest"),
                        PanelExpression("csd_global_batch_size", "of the whole step", PanelNeeds.SYNC),
                    ],
                    Unit.RECORDS,
                    Clock.NONE,
                    "Records per step, of a drive and of all together.",
                ),
            ],
        ),
        (
            "Steps of synchronous jobs",
            [
                lines(
                    "Array seconds per step",
                    of(rules.ARRAY_STEP_SECONDS),
                    Unit.SECONDS,
                    Clock.DEVICE,
                    f"Mean over the last {WINDOW}: compute, flash and link.",
                    "{{clock}}",
                    needs=PanelNeeds.SYNC,
                ),
                lines(
                    "Imbalance",
                    "csd_step_imbalance_ratio",
                    Unit.SHARE,
                    Clock.DEVICE,
                    "(max - min) / max of the devices' compute seconds in the last step: what the fastest waits.",
                    "{{clock}}",
                    needs=PanelNeeds.SYNC,
                ),
                lines(
                    "Throughput and what the tables allow",
                    [
                        PanelExpression(of(rules.ARRAY_RECORDS), "array ({{clock}})"),
                        PanelExpression(
                            "csd_possible_records_per_second", "possible by compute alone ({{clock}})", PanelNeeds.SYNC
                        ),
                    ],
                    Unit.RECORDS_PER_SECOND,
                    Clock.DEVICE,
                    f"Records per second of the array over the last {WINDOW}, and what the calibration tables, scaled "
                    "by the speeds observed, allowed in the last step.",
                ),
                lines(
                    "Learning rate and retunes",
                    [
                        PanelExpression("csd_learning_rate", "learning rate", PanelNeeds.SYNC),
                        PanelExpression("sum(csd_retunes_total)", "changed batch sizes, summed", PanelNeeds.SYNC),
                    ],
                    Unit.NUMBER,
                    Clock.NONE,
                    "Of the last step; and since the run began.",
                ),
            ],
        ),
    ],
)


COMMUNICATION = Dashboard(
    "communication",
    "csd-emu: communication",
    "What crosses the links between host and drives, and what stays in the drives.",
    [
        COST,
        (
            "Links",
            [
                lines(
                    "Bytes per record",
                    of(rules.LINK_BYTES_PER_RECORD),
                    Unit.BYTES_PER_RECORD,
                    Clock.NONE,
                    f"Over the host link, both ways, per record trained on, over the last {WINDOW}.",
                    "host link",
                ),
                lines(
                    "Moved and read",
                    [
                        PanelExpression("sum by (direction) (csd_host_link_bytes_total)", "link, {{direction}}"),
                        PanelExpression("sum(csd_nvme_read_bytes_total)", "read from flash inside the drives"),
                    ],
                    Unit.BYTES,
                    Clock.NONE,
                    "Since the run began. What is read inside the drives would cross the link if they were plain "
                    "storage.",
                ),
                lines(
                    "Busiest links",
                    f"topk({MOST}, {rules.LINK_BYTES_PER_SECOND.name})",
                    Unit.BYTES_PER_SECOND,
                    Clock.DEVICE,
                    f"Bytes per second of the array's time, of the {MOST} drives with most, over the last {WINDOW}.",
                    "{{device}}",
                ),
                lines(
                    "Time in which links move",
                    spread(rules.LINK_RATIO),
                    Unit.SHARE,
                    Clock.DEVICE,
                    f"Share of the array's time in which a drive moves weights or gradients, over the last {WINDOW}.",
                ),
                lines(
                    "Time on links and flash",
                    [
                        PanelExpression("sum by (direction) (csd_link_seconds_total)", "link, {{direction}}"),
                        PanelExpression("sum(csd_nvme_io_seconds_total)", "flash"),
                    ],
                    Unit.SECONDS,
                    Clock.DEVICE,
                    "Of all drives, composed from bytes, since the run began.",
                ),
                lines(
                    "On the wire",
                    [
                        PanelExpression("sum(csd_network_receive_bytes_total)", "to the drives"),
                        PanelExpression("sum(csd_network_transmit_bytes_total)", "from the drives"),
                    ],
                    Unit.BYTES,
                    Clock.NONE,
                    "Frames with their heads, without TLS, since the run began.",
                ),
            ],
        ),
    ],
)


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
