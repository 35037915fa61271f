"""Dashboard of communication: bytes and seconds on the links."""

from __future__ import annotations

from csd_lab.generate import prometheus_rules as rules
from csd_lab.generate.dashboards.common import COST, MOST, lines, of, spread
from csd_lab.generate.dashboards.panels import Clock, Dashboard, PanelExpression, Unit
from csd_lab.generate.prometheus_rules import WINDOW

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
