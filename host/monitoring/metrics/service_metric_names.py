"""Metrics of what drives do for their host, of a job with `host_io`; part of the table in `metric_names`."""

from __future__ import annotations

from host.monitoring.metrics.metric import Metric

HOST_COMMANDS = Metric(
    "csd_host_commands_total", "counter", "", ("device", "operation"), "Commands of the drive's host that ended"
)
HOST_BYTES = Metric(
    "csd_host_bytes_total", "counter", "bytes", ("device", "operation"), "What the drive's host read and wrote"
)
HOST_FAILED_WRITES = Metric(
    "csd_host_failed_writes_total", "counter", "", ("device",), "Writes for which the drive had no room"
)
HOST_LATENCY = Metric(
    "csd_host_latency_seconds",
    "gauge",
    "seconds",
    ("device", "percentile", "clock"),
    "Device time from a host command's arrival to its end, in the last round: the 50th, 99th and 99.9th percentile",
)
HOST_MEAN_LATENCY = Metric(
    "csd_host_mean_latency_seconds", "gauge", "seconds", ("device", "clock"), "The mean of the same"
)
HOST_QUEUE_DEPTH = Metric(
    "csd_host_queue_depth",
    "gauge",
    "",
    ("device",),
    "Commands of the host in the drive, mean of the last round",
)
WRITE_AMPLIFICATION = Metric(
    "csd_write_amplification", "gauge", "", ("device",), "Pages programmed per page written, since the run began"
)
DIES_BUSY = Metric(
    "csd_dies_busy_ratio",
    "gauge",
    "ratio",
    ("device", "clock"),
    "Share of the last round's device time in which a die works, mean over dies",
)
TRAINING_SHARE = Metric(
    "csd_training_share_ratio",
    "gauge",
    "ratio",
    ("device", "clock"),
    "Rate of training in the last round over what it would be without the host's load",
)

SERVICE_METRICS: tuple[Metric, ...] = (
    *(HOST_COMMANDS, HOST_BYTES, HOST_FAILED_WRITES, HOST_LATENCY, HOST_MEAN_LATENCY),
    *(HOST_QUEUE_DEPTH, WRITE_AMPLIFICATION, DIES_BUSY, TRAINING_SHARE),
)
