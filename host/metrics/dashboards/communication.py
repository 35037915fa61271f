"""What crosses the links."""

from __future__ import annotations

from host.metrics import rules
from host.metrics.dashboards.common import COST, MOST, lines, of, spread
from host.metrics.dashboards.panels import Clock, Dashboard, Target, Unit
from host.metrics.rules import WINDOW

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
                    "Bytes per image",
                    of(rules.LINK_BYTES_PER_IMAGE),
                    Unit.BYTES_PER_IMAGE,
                    Clock.NONE,
                    f"Over the host link, both ways, per image trained on, over the last {WINDOW}.",
                    "host link",
                ),
                lines(
                    "Moved and read",
                    [
                        Target("sum by (direction) (csd_host_link_bytes_total)", "link, {{direction}}"),
                        Target("sum(csd_nvme_read_bytes_total)", "read from flash inside the drives"),
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
                        Target("sum by (direction) (csd_link_seconds_total)", "link, {{direction}}"),
                        Target("sum(csd_nvme_io_seconds_total)", "flash"),
                    ],
                    Unit.SECONDS,
                    Clock.DEVICE,
                    "Of all drives, composed from bytes, since the run began.",
                ),
                lines(
                    "On the wire",
                    [
                        Target("sum(csd_network_receive_bytes_total)", "to the drives"),
                        Target("sum(csd_network_transmit_bytes_total)", "from the drives"),
                    ],
                    Unit.BYTES,
                    Clock.NONE,
                    "Frames with their heads, without TLS, since the run began.",
                ),
            ],
        ),
    ],
)
