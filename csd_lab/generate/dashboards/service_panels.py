"""Rows of dashboards for what drives do for their host: of one drive, and of the array."""

from __future__ import annotations

from collections.abc import Sequence

from csd_lab.generate.dashboards.panels import DRIVE, MOST, Clock, Panel, PanelExpression, PanelNeeds, Unit, lines
from csd_lab.generate.prometheus_rules import WINDOW

_HOST_IO = PanelNeeds.HOST_IO
_P99 = '{percentile="99"}'


def _per_device_second(counter: str, operation: str = "", drive: str = "") -> str:
    """Return the rate of a counter over that of device time, of a drive or of all together."""
    labels = ", ".join(each for each in (drive.strip("{}"), f'operation="{operation}"' if operation else "") if each)
    above = f"sum(rate({counter}{{{labels}}}[{WINDOW}]))"
    return f"{above} / sum(rate(csd_device_seconds_total{drive}[{WINDOW}]))"


def _by_operation(counter: str) -> list[PanelExpression]:
    return [PanelExpression(_per_device_second(counter, each, DRIVE), each, _HOST_IO) for each in ("read", "write")]


HOST_IO_OF_DRIVE: tuple[str, Sequence[Panel]] = (
    "Host I/O of $device",
    [
        lines(
            "Host commands",
            _by_operation("csd_host_commands_total"),
            Unit.COMMANDS_PER_SECOND,
            Clock.DEVICE,
            f"Commands of the drive's host that ended per second of the array's time, over the last {WINDOW}.",
            stacked=True,
        ),
        lines(
            "Host throughput",
            _by_operation("csd_host_bytes_total"),
            Unit.BYTES_PER_SECOND,
            Clock.DEVICE,
            f"Bytes that the host read and wrote per second of the array's time, over the last {WINDOW}.",
            stacked=True,
        ),
        lines(
            "Host latency",
            [
                PanelExpression(f"csd_host_latency_seconds{DRIVE}", "p{{percentile}} ({{clock}})", _HOST_IO),
                PanelExpression(f"csd_host_mean_latency_seconds{DRIVE}", "mean ({{clock}})", _HOST_IO),
            ],
            Unit.SECONDS,
            Clock.DEVICE,
            "From a host command's arrival to its end, in the last round.",
        ),
        lines(
            "Dies and training",
            [
                PanelExpression(f"csd_dies_busy_ratio{DRIVE}", "time in which a die works", _HOST_IO),
                PanelExpression(f"csd_training_share_ratio{DRIVE}", "training / without host I/O", _HOST_IO),
            ],
            Unit.SHARE,
            Clock.DEVICE,
            "Share of the last round in which a die works, and rate of training over what it would be without the "
            "host's load.",
        ),
        lines(
            "Queue and writes",
            [
                PanelExpression(f"csd_host_queue_depth{DRIVE}", "host commands in the drive", _HOST_IO),
                PanelExpression(f"csd_write_amplification{DRIVE}", "write amplification", _HOST_IO),
                PanelExpression(f"csd_host_failed_writes_total{DRIVE}", "failed writes", _HOST_IO),
            ],
            Unit.NUMBER,
            Clock.NONE,
            "Commands of the host in the drive, mean of the last round; pages programmed per page written, and writes "
            "without room, since the run began.",
        ),
    ],
)

HOST_IO_OF_ARRAY: tuple[str, Sequence[Panel]] = (
    "Host I/O",
    [
        lines(
            "Highest 99th percentiles",
            f"topk({MOST}, csd_host_latency_seconds{_P99})",
            Unit.SECONDS,
            Clock.DEVICE,
            f"Latency of host commands in the last round, of the {MOST} drives where it is highest.",
            "{{device}} ({{clock}})",
            needs=_HOST_IO,
        ),
        lines(
            "Least training beside host I/O",
            f"bottomk({MOST}, csd_training_share_ratio)",
            Unit.SHARE,
            Clock.DEVICE,
            f"Rate of training over what it would be without the host's load, of the {MOST} drives where it is lowest.",
            "{{device}} ({{clock}})",
            needs=_HOST_IO,
        ),
    ],
)
