"""Health of real drives under names that other exporters have: dashboards made for these show it.

What is of the SMART log is named as by ``nvme_metrics.py`` of prometheus-community's textfile collectors, what is of
the OCP log as by nvme_exporter, whose counters lack the ``_total`` that these have here (docs/health.md).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from host.monitoring.metrics.metric import Metric

_MINUTE_SECONDS = 60


def _gauge(name: str, unit: str, help_text: str) -> Metric:
    return Metric(f"nvme_{name}", "gauge", unit, ("device",), help_text)


def _counter(name: str, help_text: str, unit: str = "") -> Metric:
    return Metric(f"nvme_{name}_total", "counter", unit, ("device",), help_text)


# Metric -> its figure of a `DriveHealth`; None where the drive does not tell it.
HEALTH_FIGURES: dict[Metric, Callable[[Any], float | None]] = {
    _gauge(
        "temperature_celsius", "celsius", "Composite temperature of a real drive, by its own log, as all of nvme_"
    ): (attrgetter("temperature_celsius")),
    _gauge("critical_warning", "", "Bits of the critical warning; 0 for none"): attrgetter("critical_warning"),
    _gauge("available_spare_ratio", "ratio", "Spare blocks left"): attrgetter("available_spare"),
    _gauge("available_spare_threshold_ratio", "ratio", "Spare blocks below which the drive warns"): (
        attrgetter("spare_threshold")
    ),
    _gauge("percentage_used_ratio", "ratio", "Of the rated life; may be above 1"): attrgetter("used"),
    _counter("data_units_read", "Units of 512,000 bytes that the host has read"): attrgetter("io.read_units"),
    _counter("data_units_written", "Units of 512,000 bytes that the host has written"): attrgetter("io.written_units"),
    _counter("host_read_commands", "Read commands of the host"): attrgetter("io.read_commands"),
    _counter("host_write_commands", "Write commands of the host"): attrgetter("io.write_commands"),
    _counter("controller_busy_time_seconds", "In which the drive had commands, in whole minutes", "seconds"): (
        lambda health: None if health.busy_minutes is None else health.busy_minutes * _MINUTE_SECONDS
    ),
    _counter("power_cycles", "Power cycles"): attrgetter("power_cycles"),
    _counter("power_on_hours", "Hours of power"): attrgetter("power_on_hours"),
    _counter("unsafe_shutdowns", "Losses of power without a shutdown"): attrgetter("unsafe_shutdowns"),
    _counter("media_errors", "Errors of data that the drive could not recover"): attrgetter("media_errors"),
    _counter("num_err_log_entries", "Entries of the error log"): attrgetter("error_log_entries"),
    _counter("number_of_thermal_throttling_events", "Times that the drive began to throttle (OCP log)"): (
        attrgetter("throttle_events")
    ),
    _gauge("current_throttling_status", "", "Level at which the drive throttles now, 0 for none (OCP log)"): (
        attrgetter("throttling")
    ),
    _gauge("interval_power_watts", "watts", "Mean over the drive's last measuring interval; a name of our own"): (
        attrgetter("power_watts")
    ),
}
