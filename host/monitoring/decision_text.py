"""Decisions of a run's tuners, for people."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Literal

from firmware_agent.common.units import format_bytes
from host.core.records import PlacementRecord, RetuneRecord, SendingRecord, StepRecord

Knob = Literal["devices", "layers", "batches", "slices"]
"""What a decision is about: devices that train, layers on the host, records per device, or how tensors are sent."""
_MOST_NAMES = 4


def describe_batches(retune: RetuneRecord, most: int = _MOST_NAMES) -> str:
    """Return the batches that change, such as ``csd-01 32 -> 15``; at most so many devices by name."""
    names = dict.fromkeys([*retune.before, *retune.after])
    changes = [(name, retune.before.get(name, 0), retune.after.get(name, 0)) for name in names]
    told = [f"{name} {before} -> {after}" for name, before, after in changes if before != after]
    rest = f" and {len(told) - most} more" if len(told) > most else ""
    return ", ".join(told[:most]) + rest if told else "no batch changes"


def join_batches(batches: Mapping[str, int]) -> str:
    """Return batches as text, such as ``csd-00 and 3 more 32, host 514``: devices in a row that have as many in one."""
    runs = [(size, [name for name, _ in own]) for size, own in groupby(batches.items(), key=lambda each: each[1])]
    named = [(" and ".join(own) if len(own) < 3 else f"{own[0]} and {len(own) - 1} more", size) for size, own in runs]
    return ", ".join(f"{names} {size}" for names, size in named) or "none here"


def describe_sending(sending: SendingRecord | None) -> str:
    """Return how tensors are sent, such as ``46 kB, credit 49 kB``."""
    if sending is None or sending.slice_bytes is None:
        return "whole tensors"
    credit = "no limit of credit" if sending.credit_bytes is None else f"credit {format_bytes(sending.credit_bytes)}"
    return f"{format_bytes(sending.slice_bytes)}, {credit}"


def describe_placement(placed: PlacementRecord | None) -> str:
    """Return which layers are on the host."""
    return "all on the drives" if placed is None else f"{placed.layers} on the host, from {placed.layer} on"


def describe_step(step: StepRecord) -> dict[Knob, str]:
    """Return what a step was taken with; an epoch's last one has fewer records."""
    batches = {part.device: part.batch_size for part in step.devices}
    return {
        "devices": f"{len(batches)} train",
        "layers": describe_placement(step.placement),
        "batches": join_batches(batches),
        "slices": describe_sending(step.sending),
    }
