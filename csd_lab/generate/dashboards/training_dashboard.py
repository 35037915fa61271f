"""Dashboard of training: accuracy, loss and rounds."""

from __future__ import annotations

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.common import COST, lines, of
from csd_lab.generate.dashboards.panels import Clock, Dashboard, PanelExpression, PanelNeeds, Unit
from csd_lab.generate.prometheus_rules import WINDOW

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
