"""Records of runs that never were, for tests of what reads them."""

from __future__ import annotations

from typing import Any

from firmware_agent.wire import PhaseSeconds
from host.records import DeviceRound, RoundRecord


def device_round(device: str, samples: int, seconds: PhaseSeconds, **fields: Any) -> DeviceRound:
    """Return a device's part in a round; `fields` replace what is made up."""
    defaults: dict[str, Any] = {
        "clock": "counted",
        "steps": 2,
        "batch_size": 32,
        "loss": 0.5,
        "stopwatch_seconds": PhaseSeconds(),
        "sent_bytes": 100,
        "received_bytes": 200,
    }
    return DeviceRound(device=device, samples=samples, device_seconds=seconds, **defaults | fields)


def round_record(devices: list[DeviceRound], **fields: Any) -> RoundRecord:
    """Return a round of these devices; `fields` replace what is made up."""
    slowest = max((part.device_seconds.total for part in devices), default=0.0)
    defaults: dict[str, Any] = {
        "round": 1,
        "clock": "counted",
        "accuracy": 0.9,
        "test_loss": 0.3,
        "train_loss": 0.5,
        "images_per_device_second": 2.7,
        "slowest_device_seconds": slowest,
        "start_seconds": 0.0,
        "array_seconds": slowest,
        "wall_seconds": 9.0,
    }
    return RoundRecord(devices=devices, **defaults | fields)
