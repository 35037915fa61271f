"""The metrics of synchronous steps; others are in `host.monitoring.metrics.metric_names`."""

from __future__ import annotations

from host.monitoring.metrics.metric import STEP_BUCKETS, Metric

STEP = Metric("csd_step", "gauge", "", ("mode",), "The last synchronous step that ended; 0 before the first")
ARRAY_STEP_SECONDS = Metric(
    "csd_step_duration_seconds",
    "histogram",
    "seconds",
    ("mode", "clock"),
    "Composed array time of a synchronous step: compute, flash and link",
    STEP_BUCKETS,
)
GLOBAL_BATCH_SIZE = Metric("csd_global_batch_size", "gauge", "", (), "Records in the last synchronous step")
LEARNING_RATE = Metric("csd_learning_rate", "gauge", "", (), "That the host's optimiser took the last step with")
IMBALANCE = Metric(
    "csd_step_imbalance_ratio",
    "gauge",
    "ratio",
    ("clock",),
    "(max - min) / max of the devices' compute seconds in the last synchronous step",
)
POSSIBLE_RATE = Metric(
    "csd_possible_records_per_second",
    "gauge",
    "",
    ("clock",),
    "What the tables, scaled by the speeds observed, allowed in the last step by compute alone",
)
RETUNES = Metric("csd_retunes_total", "counter", "", ("device",), "Times that the device's batch size was changed")
SLOWDOWN = Metric(
    "csd_device_slowdown_ratio",
    "gauge",
    "ratio",
    ("device", "clock"),
    "Observed over expected compute seconds of the device in the last step, where it has a table",
)
DISTURBANCE_WEIGHT = Metric(
    "csd_disturbance_weight",
    "gauge",
    "",
    ("device",),
    "Cgroup weight of the work that the job had compete in the last step, 0 for none; the trainer has 100",
)
LATE_STEPS = Metric(
    "csd_late_steps_total",
    "counter",
    "",
    ("device",),
    "Steps that did not wait for the device: its gradient was dropped",
)
MIXED_STEPS = Metric(
    "csd_mixed_steps_total",
    "counter",
    "",
    (),
    "Steps in which part of the gradient holds slices of a device that was lost",
)

PS_LAYERS = Metric(
    "csd_ps_layers", "gauge", "", (), "Layers that the host computed in the last step; 0 of a whole model"
)
PS_BYTES = Metric(
    "csd_ps_bytes", "gauge", "bytes", (), "Parameters and buffers of these layers, which do not cross the link"
)
CROSSED_BYTES = Metric(
    "csd_crossed_bytes_total",
    "counter",
    "bytes",
    ("direction",),
    "Activations and labels to the host (up), their gradients to the drives (down), where a model is cut",
)

COMM_SLICE_BYTES = Metric(
    "csd_comm_partition_bytes", "gauge", "bytes", (), "Size of a slice in the last step; none of whole tensors"
)
COMM_CREDIT_BYTES = Metric(
    "csd_comm_credit_bytes", "gauge", "bytes", (), "How much may be under way to or from a drive; none without a limit"
)
COMM_CHANGES = Metric(
    "csd_comm_tuner_changes_total", "counter", "", (), "Steps that were sent otherwise than the one before in the round"
)

STEP_METRICS: tuple[Metric, ...] = (
    *(STEP, ARRAY_STEP_SECONDS, GLOBAL_BATCH_SIZE, LEARNING_RATE, IMBALANCE, POSSIBLE_RATE),
    *(RETUNES, SLOWDOWN, DISTURBANCE_WEIGHT, LATE_STEPS, MIXED_STEPS),
    *(PS_LAYERS, PS_BYTES, CROSSED_BYTES),
    *(COMM_SLICE_BYTES, COMM_CREDIT_BYTES, COMM_CHANGES),
)
