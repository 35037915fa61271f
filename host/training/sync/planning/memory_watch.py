"""Comparison of the planned memory with the peaks that the drives' agents report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firmware_agent.common.units import format_bytes
from host.core.device_time import COUNTED
from host.core.records import DeviceRound, EventKind, OnEvent
from host.policies.batching.device_speeds import DeviceClass

# A peak that is this share above the table's may come to more than there is at the next retune.
_TOLERANCE = 0.1


class MemoryWatch:
    """Says so once when a drive holds more than its table expects; one instance per run."""

    def __init__(self, classes: Mapping[str, DeviceClass], on_event: OnEvent) -> None:
        """Watch the devices that have a class; `on_event` is told."""
        self._classes, self._on_event = classes, on_event
        self._said: set[str] = set()

    def look(self, parts: Sequence[DeviceRound]) -> None:
        """Compare the peaks of one step; of a process on this machine they say nothing of a drive."""
        for part in parts:
            known = self._classes.get(part.device)
            if known is None or part.clock != COUNTED or part.device in self._said or not part.peak_memory_bytes:
                continue
            expected = known.needed_bytes(part.samples)
            if part.peak_memory_bytes > (1 + _TOLERANCE) * expected:
                self._said.add(part.device)
                self._on_event(
                    part.device,
                    EventKind.NOTE,
                    f"its agent has held {format_bytes(part.peak_memory_bytes)}, its calibration table expects "
                    f"{format_bytes(expected)} at {part.samples} records; {format_bytes(known.memory.available_bytes)} "
                    "are there: batches may not fit, calibrate the model again",
                )
