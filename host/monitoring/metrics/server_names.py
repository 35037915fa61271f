"""The metrics of several servers that train together; others are in `host.monitoring.metrics.metric_names`."""

from __future__ import annotations

from host.monitoring.metrics.metric import Metric

SERVER_INFO = Metric(
    "csd_server_info", "gauge", "", ("server",), "1; the server whose host this is: join it on job and instance"
)
SERVERS_EXPECTED = Metric(
    "csd_servers_expected", "gauge", "", (), "Servers that the run was begun with; only where several train together"
)
SERVERS = Metric(
    "csd_servers", "gauge", "", (), "Servers, this one included, that took the last step together, or have met since"
)
SERVER_STEPS = Metric("csd_server_steps_total", "counter", "", (), "Steps that were taken together with other servers")
ALLREDUCE_BYTES = Metric(
    "csd_allreduce_bytes_total", "counter", "bytes", (), "Sent by this server to others to add up gradients"
)
ALLREDUCE_SECONDS = Metric(
    "csd_allreduce_seconds_total",
    "counter",
    "seconds",
    ("clock",),
    "Device time of adding up gradients over the servers, composed from bytes",
)
SERVER_WAIT_SECONDS = Metric(
    "csd_server_wait_seconds_total",
    "counter",
    "seconds",
    ("clock",),
    "Device time in which this server had done its part of a step, and another had not",
)
RENDEZVOUS = Metric(
    "csd_rendezvous_total", "counter", "", (), "Times that the servers met anew after one was lost or came back"
)

SERVER_METRICS: tuple[Metric, ...] = (
    *(SERVER_INFO, SERVERS_EXPECTED, SERVERS, SERVER_STEPS),
    *(ALLREDUCE_BYTES, ALLREDUCE_SECONDS, SERVER_WAIT_SECONDS, RENDEZVOUS),
)
