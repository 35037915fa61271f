"""PromQL that answers what users ask: documented in docs/metrics.md, held against records by the bench `metrics`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Query:
    """A question and its expression; `WINDOW` in it stands for the range, such as ``5m``."""

    question: str
    expression: str

    def over(self, window: str) -> str:
        """Return the expression over a range."""
        return self.expression.replace("WINDOW", window)


def _ratio(above: str, below: str, by: str = "") -> str:
    group = f" by ({by}) " if by else ""
    return f"sum{group}(rate({above}[WINDOW])) / sum{group}(rate({below}[WINDOW]))"


_ARRAY_SECONDS = "csd_round_duration_seconds_sum"
IMAGES_PER_DEVICE_SECOND = Query(
    "images per device second of each drive, as in the run record",
    _ratio("csd_train_samples_total", "csd_compute_seconds_total", "device"),
)
MEAN_IMAGES_PER_DEVICE_SECOND = Query(
    "the same, as a mean over the drives", _ratio("csd_train_samples_total", "csd_compute_seconds_total")
)
IMAGES_PER_ARRAY_SECOND = Query(
    "images per second of the array: flash, link and waiting included",
    _ratio("csd_train_samples_total", _ARRAY_SECONDS),
)
WATTS = Query(
    "watts of each drive and of the host", _ratio("csd_energy_joules_total", "csd_device_seconds_total", "device")
)
ARRAY_WATTS = Query("watts of the whole array", _ratio("csd_energy_joules_total", _ARRAY_SECONDS))
JOULES_PER_IMAGE = Query(
    "joules per image, host included", _ratio("csd_energy_joules_total", "csd_train_samples_total")
)
DEVICE_JOULES_PER_IMAGE = Query(
    "joules per image of each drive alone",
    _ratio("csd_energy_joules_total", "csd_train_samples_total", "device"),
)
JOULES = Query("joules of each drive and of the host, since the run began", "sum by (device) (csd_energy_joules_total)")
STEP_SECONDS = Query(
    "device seconds per step and phase",
    _ratio("csd_train_step_duration_seconds_sum", "csd_train_step_duration_seconds_count", "device, phase"),
)
BUSY_RATIO = Query(
    "share of its time in which a drive computes",
    _ratio("csd_compute_seconds_total", "csd_device_seconds_total", "device"),
)
LINK_BYTES_PER_IMAGE = Query(
    "bytes over the host link per image", _ratio("csd_host_link_bytes_total", "csd_train_samples_total")
)
WALL_PER_ARRAY_SECOND = Query(
    "wall seconds per second of the array: what emulation costs", _ratio("csd_wall_seconds_total", _ARRAY_SECONDS)
)
ARRAY_STEP_SECONDS = Query(
    "array seconds per synchronous step", _ratio("csd_step_duration_seconds_sum", "csd_step_duration_seconds_count")
)
SLOWER = Query("devices that are slower than their table", "csd_device_slowdown_ratio > 1.1")
LOST = Query("drives without a session", "csd_device_up == 0")

QUERIES: tuple[Query, ...] = (
    *(IMAGES_PER_DEVICE_SECOND, MEAN_IMAGES_PER_DEVICE_SECOND, IMAGES_PER_ARRAY_SECOND),
    *(WATTS, ARRAY_WATTS, JOULES_PER_IMAGE, DEVICE_JOULES_PER_IMAGE, JOULES),
    *(STEP_SECONDS, BUSY_RATIO, LINK_BYTES_PER_IMAGE, WALL_PER_ARRAY_SECOND, ARRAY_STEP_SECONDS, SLOWER, LOST),
)
