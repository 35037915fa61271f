"""One drive."""

from __future__ import annotations

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.common import COST, DRIVE, lines, of, stat
from csd_lab.generate.dashboards.panels import Clock, Dashboard, PanelExpression, PanelNeeds, Unit
from csd_lab.generate.prometheus_rules import WINDOW

DRIVE_DASHBOARD = Dashboard(
    "drive",
    "csd-emu: drive",
    "One drive; choose it above.",
    [
        COST,
        (
            "Drive $device",
            [
                stat("Session", f"csd_device_up{DRIVE}", Unit.NUMBER, Clock.NONE, "1 while the drive has a session."),
                stat("Batch size", f"csd_batch_size{DRIVE}", Unit.RECORDS, Clock.NONE, "Records per step."),
                stat(
                    "Memory",
                    f"csd_memory_used_bytes{DRIVE}",
                    Unit.BYTES,
                    Clock.NONE,
                    "Most that the agent has held.",
                    needs=PanelNeeds.MEMORY,
                ),
                stat(
                    "Compute time",
                    f"sum by (clock) (csd_compute_seconds_total{DRIVE})",
                    Unit.SECONDS,
                    Clock.DEVICE,
                    "In which the drive has computed, since the run began.",
                ),
                stat(
                    "Records",
                    f"csd_train_samples_total{DRIVE}",
                    Unit.RECORDS,
                    Clock.NONE,
                    "Trained on, repeats counted.",
                ),
                stat(
                    "Errors",
                    f"sum(csd_errors_total{DRIVE})",
                    Unit.NUMBER,
                    Clock.NONE,
                    "Times lost, failed or refused.",
                ),
                lines(
                    "Throughput",
                    [
                        PanelExpression(of(rules.DEVICE_RECORDS, DRIVE), "measured ({{clock}})"),
                        PanelExpression(
                            f"csd_calibrated_records_per_second{DRIVE}",
                            "calibration table ({{clock}})",
                            PanelNeeds.TABLE,
                        ),
                    ],
                    Unit.RECORDS_PER_SECOND,
                    Clock.DEVICE,
                    f"Records per second of compute over the last {WINDOW}, and what the calibration table says of the "
                    "last round's batches.",
                ),
                lines(
                    "Against its calibration",
                    [
                        PanelExpression(of(rules.OF_CALIBRATION, DRIVE), "throughput / table", PanelNeeds.TABLE),
                        PanelExpression(f"csd_device_slowdown_ratio{DRIVE}", "step seconds / table", PanelNeeds.SYNC),
                    ],
                    Unit.SHARE,
                    Clock.DEVICE,
                    f"Throughput over the last {WINDOW}, and the seconds of the last synchronous step, as shares of "
                    "the table's.",
                ),
                lines(
                    "Step by phase",
                    of(rules.STEP_SECONDS, DRIVE),
                    Unit.SECONDS,
                    Clock.DEVICE,
                    f"Mean seconds of a step's phases over the last {WINDOW}.",
                    "{{phase}}",
                    stacked=True,
                ),
                lines(
                    "Slow steps",
                    "histogram_quantile(0.95, sum by (le, phase) "
                    f"(rate(csd_train_step_duration_seconds_bucket{DRIVE}[{WINDOW}])))",
                    Unit.SECONDS,
                    Clock.DEVICE,
                    f"What 95 % of steps in the last {WINDOW} stayed below, by phase, as precise as the buckets. Of "
                    "a federated round only the mean is known.",
                    "{{phase}}",
                ),
                lines(
                    "Share of its time",
                    [
                        PanelExpression(of(rules.BUSY, DRIVE), "computes"),
                        PanelExpression(of(rules.LINK_RATIO, DRIVE), "moves weights or gradients"),
                    ],
                    Unit.SHARE,
                    Clock.DEVICE,
                    f"Of the array's time over the last {WINDOW}; the rest is flash and waiting.",
                ),
                lines(
                    "Power by component",
                    f"sum by (component) (csd_power_watts{DRIVE})",
                    Unit.WATTS,
                    Clock.DEVICE,
                    "Mean of the last round, modelled from the drive's profile.",
                    "{{component}}",
                    stacked=True,
                ),
                lines(
                    "Energy per record",
                    of(rules.DEVICE_JOULES_PER_RECORD, DRIVE),
                    Unit.JOULES_PER_RECORD,
                    Clock.NONE,
                    f"Of this drive alone, over the last {WINDOW}.",
                    "{{device}}",
                ),
                lines(
                    "Link",
                    of(rules.LINK_BYTES_PER_SECOND, DRIVE),
                    Unit.BYTES_PER_SECOND,
                    Clock.DEVICE,
                    f"Bytes per second of the array's time over the drive's link, both ways, over the last {WINDOW}.",
                    "{{device}}",
                ),
                lines(
                    "Retunes and late work",
                    [
                        PanelExpression(f"csd_retunes_total{DRIVE}", "retunes", PanelNeeds.SYNC),
                        PanelExpression(f"csd_late_steps_total{DRIVE}", "late steps", PanelNeeds.SYNC),
                        PanelExpression(f"csd_late_rounds_total{DRIVE}", "late rounds"),
                    ],
                    Unit.NUMBER,
                    Clock.NONE,
                    "Changes of its batch size, and steps and rounds that did not wait for it, since the run began.",
                ),
                lines(
                    "Competing work",
                    f"csd_disturbance_weight{DRIVE}",
                    Unit.NUMBER,
                    Clock.NONE,
                    "Cgroup weight of the work that the job has compete with the trainer, which has 100.",
                    "weight",
                    needs=PanelNeeds.SYNC,
                ),
            ],
        ),
    ],
    by_drive=True,
)
