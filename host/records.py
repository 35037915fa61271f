"""What a run writes down: one JSON line per round or event, and a summary. Seconds of a drive name their clock."""

from __future__ import annotations

from typing import Any

import msgspec

from firmware_agent.wire import PhaseSeconds


class DeviceRound(msgspec.Struct, frozen=True):
    """One device's part in a round.

    Attributes:
        device: its name.
        samples: records trained on, repetitions counted.
        steps: optimiser steps.
        loss: mean over the samples.
        stopwatch_seconds: what the device's own clock saw, per phase.
        device_seconds: the same as seconds of the device's profile.
        flash_read_bytes: read from the shard.
        sent_bytes: over the wire, host to device, in this round.
        received_bytes: over the wire, device to host, in this round.
    """

    device: str
    samples: int
    steps: int
    loss: float
    stopwatch_seconds: PhaseSeconds
    device_seconds: PhaseSeconds
    flash_read_bytes: int
    sent_bytes: int
    received_bytes: int


class RoundRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="round"):
    """One round. `images_per_device_second` is the mean rate of a device; `wall_seconds` the cost of emulation."""

    round: int
    clock: str
    accuracy: float
    test_loss: float
    train_loss: float
    images_per_device_second: float
    slowest_device_seconds: float
    wall_seconds: float
    devices: list[DeviceRound]
    lost: list[str]


class EventRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="event"):
    """Something that happened to a device, `wall_seconds` after the run began."""

    device: str
    event: str
    wall_seconds: float


class Summary(msgspec.Struct, frozen=True):
    """How a run ended."""

    array: str
    engine: str
    clock: str
    model: str
    rounds: int
    accuracy: float
    target_accuracy: float | None
    reached: bool
    samples: int
    device_seconds: dict[str, float]
    images_per_device_second: float
    wall_seconds: float
    run_directory: str
    seed: int


def summarise(rounds: list[RoundRecord], **facts: Any) -> Summary:
    """Return the summary of the `rounds`; `facts` are the fields that they do not know."""
    seconds: dict[str, float] = {}
    for record in rounds:
        for part in record.devices:
            seconds[part.device] = seconds.get(part.device, 0.0) + part.device_seconds.total
    samples = sum(part.samples for record in rounds for part in record.devices)
    total = sum(seconds.values())
    return Summary(
        clock=rounds[-1].clock,
        rounds=len(rounds),
        accuracy=rounds[-1].accuracy,
        samples=samples,
        device_seconds=seconds,
        images_per_device_second=samples / total if total else 0.0,
        **facts,
    )
