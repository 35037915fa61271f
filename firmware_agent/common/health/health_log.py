"""Decoding of a drive's health logs as nvme-cli prints them in JSON; nothing in them is believed.

The SMART log is that of ``nvme smart-log -o json``, of nvme-cli 1 and 2; the OCP log (page C0h, Datacenter NVMe SSD
specification) that of ``nvme ocp smart-add-log -o json``, in either of its output formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from firmware_agent.common.errors import HealthLogRefused
from firmware_agent.common.health.drive_health import DriveHealth, IoCounters

MAX_LOG_BYTES = 64 << 10
# Versions of page C0h whose fields stand where we know them: every version has only added some.
OCP_VERSIONS = range(1, 7)
_OCP_GUID = 0xAFD514C97C6F4F9CA4F2BFEA2810AFC5
# As nvme-cli itself converts them.
_ZERO_CELSIUS_KELVIN = 273
_SENSORS, _STAGES = 8, 2
_NO_CAPACITOR = 0xFFFF
# Digits of the largest counter, which has 128 bits.
_MOST_DIGITS = 39
# Watts of one count by the scale of a power; of the other scales nothing is reported.
_WATTS = {1: 1e-4, 2: 1e-2}

_Log = Mapping[str, Any]
_Figure = Callable[[int], float | None]


def _celsius(kelvin: int) -> float | None:
    return kelvin - _ZERO_CELSIUS_KELVIN if kelvin else None


def _ratio(percent: int) -> float:
    return percent / 100


# Field of a log, by its key in words joined by "_" -> field of `DriveHealth` or of its counters, and how it is read.
_SMART: dict[str, tuple[str, _Figure]] = {
    "data_units_read": ("read_units", int),
    "data_units_written": ("written_units", int),
    "host_read_commands": ("read_commands", int),
    "host_write_commands": ("write_commands", int),
    "critical_warning": ("critical_warning", int),
    "temperature": ("temperature_celsius", _celsius),
    "avail_spare": ("available_spare", _ratio),
    "spare_thresh": ("spare_threshold", _ratio),
    "percent_used": ("used", _ratio),
    "controller_busy_time": ("busy_minutes", int),
    "power_cycles": ("power_cycles", int),
    "power_on_hours": ("power_on_hours", int),
    "unsafe_shutdowns": ("unsafe_shutdowns", int),
    "media_errors": ("media_errors", int),
    "num_err_log_entries": ("error_log_entries", int),
    "interval_power_measurement": (
        "power_watts",
        lambda raw: (raw & 0xFFFF) * _WATTS[raw >> 16 & 3] if raw >> 16 & 3 in _WATTS else None,
    ),
}
_OCP: dict[str, tuple[str, _Figure]] = {
    "log_page_version": ("ocp_version", int),
    "current_throttling_status": ("throttling", int),
    "number_of_thermal_throttling_events": ("throttle_events", int),
    "thermal_throttling_events": ("throttle_events", int),
    "physical_media_units_written": ("media_written_bytes", int),
    "physical_media_units_read": ("media_read_bytes", int),
    "bad_user_nand_blocks_raw": ("bad_user_blocks", int),
    "uncorrectable_read_error_count": ("uncorrectable_reads", int),
    "uncorrectable_read_errors": ("uncorrectable_reads", int),
    "capacitor_health": ("capacitor_health", lambda percent: None if percent == _NO_CAPACITOR else _ratio(percent)),
    "plp_start_count": ("power_loss_starts", int),
}


def decode_health(smart: bytes, ocp: bytes | None = None) -> DriveHealth:
    """Return what the logs say.

    Args:
        smart: the SMART log, in JSON.
        ocp: the OCP log, in JSON; None of a drive that has none.

    Raises:
        HealthLogRefused: a log is cut short, too long, another one, of another version, or a value in it is impossible.
    """
    log = _open(smart, "SMART log", ("critical_warning", "temperature"))
    values = _read(log, _SMART, "SMART log")
    values["io"] = {name: values.pop(name, None) for name in IoCounters.__struct_fields__}
    sensors = _numbers(log, *(f"temperature_sensor_{number}" for number in range(1, _SENSORS + 1)))
    values["hottest_celsius"] = _celsius(max(sensors, default=0))
    for field, unit in (("throttle_transitions", "trans_count"), ("throttle_seconds", "total_time")):
        stages = _numbers(log, f"thm_temp1_{unit}", f"thm_temp2_{unit}")
        values[field] = sum(stages) if len(stages) == _STAGES else None
    if ocp is not None:
        values |= _read(_open_ocp(ocp), _OCP, "OCP log")
    try:
        return msgspec.convert(values, DriveHealth)
    except msgspec.ValidationError as error:
        raise HealthLogRefused(f"a health log of this drive has a value that no drive can have: {error}") from error


def _open_ocp(data: bytes) -> _Log:
    log = _open(data, "OCP log", ("log_page_version",))
    if (version := _number(log["log_page_version"], "log_page_version", "OCP log")) not in OCP_VERSIONS:
        raise HealthLogRefused(
            f"the OCP log of this drive is of version {version}, and csd-emu knows {OCP_VERSIONS[0]} to "
            f"{OCP_VERSIONS[-1]}: update csd-emu"
        )
    if isinstance(guid := log.get("log_page_guid"), str) and guid.lower() != hex(_OCP_GUID):
        raise HealthLogRefused(f"the OCP log of this drive has the GUID {guid[:64]!r}: that is another log page")
    return log


def _open(data: bytes, name: str, needed: tuple[str, ...]) -> _Log:
    """Return the log's values by their keys, all in small letters, words joined by ``_``."""
    if len(data) > MAX_LOG_BYTES:
        raise HealthLogRefused(f"the {name} of this drive is longer than the {MAX_LOG_BYTES} bytes that one may have")
    try:
        log = _plain(msgspec.json.decode(data, type=dict[str, Any]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HealthLogRefused(
            f"the {name} of this drive is cut short, or no JSON of nvme-cli ({error}); see what nvme says on the drive"
        ) from error
    if missing := [key for key in needed if key not in log]:
        says = f"; it says {log['error'][:200]!r}" if isinstance(log.get("error"), str) else ""
        raise HealthLogRefused(f"the {name} of this drive is another log: it has no {' and no '.join(missing)}{says}")
    return log


def _plain(log: _Log) -> dict[str, Any]:
    return {re.sub(r"[^a-z0-9]+", "_", key.lower()): value for key, value in log.items()}


def _read(log: _Log, fields: Mapping[str, tuple[str, _Figure]], name: str) -> dict[str, Any]:
    return {field: figure(_number(log[key], key, name)) for key, (field, figure) in fields.items() if key in log}


def _numbers(log: _Log, *keys: str) -> list[int]:
    return [_number(log[key], key, "SMART log") for key in keys if key in log]


def _number(value: Any, key: str, name: str) -> int:
    """Return a number; it may also be two halves of 64 bits each, or stand beside the meanings of its bits."""
    parts = _plain(value) if isinstance(value, dict) else {"value": value}
    high, low = _whole(parts.get("hi", 0)), _whole(parts.get("lo", parts.get("value")))
    if high is None or low is None:
        raise HealthLogRefused(
            f"the {name} of this drive has {repr(value[:64]) if isinstance(value, str) else type(value)} as {key}, "
            "which is no whole number"
        )
    return (high << 64) + low


def _whole(value: object) -> int | None:
    """Return a number that nvme-cli may have written as such, with a point, or as digits."""
    digits = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS
    if digits or (isinstance(value, float) and value.is_integer()):
        return int(value)  # type: ignore[call-overload, no-any-return]
    return value if isinstance(value, int) and not isinstance(value, bool) else None
