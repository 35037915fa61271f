"""How well the model learns."""

from __future__ import annotations

from host.metrics import rules
from host.metrics.dashboards.common import COST, lines, of
from host.metrics.dashboards.panels import Clock, Dashboard, Needs, Target, Unit
from host.metrics.rules import WINDOW

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
                        Target("csd_round_participants", "took part"),
                        Target("csd_round_stragglers_total", "late, summed over rounds"),
                        Target("sum(csd_mixed_steps_total)", "mixed steps, summed", Needs.SYNC),
                    ],
                    Unit.NUMBER,
                    Clock.NONE,
                    "Devices whose weights or gradients the last round holds; late ones, and steps that hold part of a "
                    "lost drive's gradient, summed since the run began.",
                ),
                lines(
                    "Batch sizes",
                    [
                        Target("max(csd_batch_size)", "largest"),
                        Target("quantile(0.5, csd_batch_size)", "median"),
                        Target("min(csd_batch_size)", "smallest"),
                        Target("csd_global_batch_size", "of the whole step", Needs.SYNC),
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
                    needs=Needs.SYNC,
                ),
                lines(
                    "Imbalance",
                    "csd_step_imbalance_ratio",
                    Unit.SHARE,
                    Clock.DEVICE,
                    "(max - min) / max of the devices' compute seconds in the last step: what the fastest waits.",
                    "{{clock}}",
                    needs=Needs.SYNC,
                ),
                lines(
                    "Throughput and what the tables allow",
                    [
                        Target(of(rules.ARRAY_IMAGES), "array ({{clock}})"),
                        Target("csd_possible_images_per_second", "possible by compute alone ({{clock}})", Needs.SYNC),
                    ],
                    Unit.IMAGES_PER_SECOND,
                    Clock.DEVICE,
                    f"Images per second of the array over the last {WINDOW}, and what the calibration tables, scaled "
                    "by the speeds observed, allowed in the last step.",
                ),
                lines(
                    "Learning rate and retunes",
                    [
                        Target("csd_learning_rate", "learning rate", Needs.SYNC),
                        Target("sum(csd_retunes_total)", "changed batch sizes, summed", Needs.SYNC),
                    ],
                    Unit.NUMBER,
                    Clock.NONE,
                    "Of the last step; and since the run began.",
                ),
            ],
        ),
    ],
)
