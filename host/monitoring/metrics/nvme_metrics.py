"""Health of real drives under names that other exporters have: dashboards made for these show it.

What is of the SMART log is named as by ``nvme_metrics.py`` of prometheus-community's textfile collectors, what is of
the OCP log as by nvme_exporter, whose counters lack the ``_total`` that these have here (docs/health.md).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from host.monitoring.metrics.metric import Kind, Metric


def _metric(kind: Kind, name: str, help_text: str, unit: str = "") -> Metric:
    return Metric(f"nvme_{name}{'_total' if kind == 'counter' else ''}", kind, unit, ("device",), help_text)


# Metric -> its figure of a `DriveHealth`; None where the drive does not tell it.
HEALTH_FIGURES: dict[Metric, Callable[[Any], float | None]] = {
    _metric(
        "gauge",
        "temperature_celsius",
        "Composite temperature of a real drive, by its own log, as all of nvme_",
        "celsius",
    ): (attrgetter("temperature_celsius")),
    _metric("gauge", "critical_warning", "Bits of the critical warning; 0 for none"): attrgetter("critical_warning"),
    _metric("gauge", "available_spare_ratio", "Spare blocks left", "ratio"): attrgetter("available_spare"),
    _metric("gauge", "available_spare_threshold_ratio", "Spare blocks below which the drive warns", "ratio"): (
        attrgetter("spare_threshold")
    ),
    _metric("gauge", "percentage_used_ratio", "Of the rated life; may be above 1", "ratio"): attrgetter("used"),
    _metric("counter", "data_units_read", "Units of 512,000 bytes that the host has read"): attrgetter("io.read_units"),
    _metric("counter", "data_units_written", "Units of 512,000 bytes that the host has written"): attrgetter(
        "io.written_units"
    ),
    _metric("counter", "host_read_commands", "Read commands of the host"): attrgetter("io.read_commands"),
    _metric("counter", "host_write_commands", "Write commands of the host"): attrgetter("io.write_commands"),
    _metric(
        "counter", "controller_busy_time_seconds", "In which the drive had commands, in whole minutes", "seconds"
    ): (lambda health: None if health.busy_minutes is None else health.busy_minutes * 60),
    _metric("counter", "power_cycles", "Power cycles"): attrgetter("power_cycles"),
    _metric("counter", "power_on_hours", "Hours of power"): attrgetter("power_on_hours"),
    _metric("counter", "unsafe_shutdowns", "Losses of power without a shutdown"): attrgetter("unsafe_shutdowns"),
    _metric("counter", "media_errors", "Errors of data that the drive could not recover"): attrgetter("media_errors"),
    _metric("counter", "num_err_log_entries", "Entries of the error log"): attrgetter("error_log_entries"),
    _metric("counter", "number_of_thermal_throttling_events", "Times that the drive began to throttle (OCP log)"): (
        attrgetter("throttle_events")
    ),
    _metric("gauge", "current_throttling_status", "Level at which the drive throttles now, 0 for none (OCP log)"): (
        attrgetter("throttling")
    ),
    _metric(
        "gauge", "interval_power_watts", "Mean over the drive's last measuring interval; a name of our own", "watts"
    ): (attrgetter("power_watts")),
}
