"""Notes on the health of real drives: once when one begins to throttle, and when its critical warning is set."""

from __future__ import annotations

from firmware_agent.common.health.drive_health import DriveHealth
from host.core.records import EventKind, OnEvent, RoundRecord


class HealthWatch:
    """Compares what each drive said of itself in a round with what it said before; one instance per run."""

    def __init__(self, on_event: OnEvent) -> None:
        """Begin with drives that have said nothing; `on_event` is told."""
        self._on_event = on_event
        self._last: dict[str, DriveHealth] = {}
        self._throttled: set[str] = set()

    def look_at(self, record: RoundRecord) -> None:
        """Look at one more round."""
        for device, health in ((part.device, part.health) for part in record.devices if part.health is not None):
            before = self._last.get(device, DriveHealth())
            self._last[device] = health
            if new := [each for each in health.warnings if each not in before.warnings]:
                self._on_event(device, EventKind.NOTE, f"its own log warns: {', '.join(new)}; see docs/health.md")
            if not health.has_throttled(before):
                self._throttled.discard(device)
            elif device not in self._throttled:
                self._throttled.add(device)
                heat = "" if health.temperature_celsius is None else f" at {health.temperature_celsius:.0f} °C"
                self._on_event(device, EventKind.NOTE, f"it throttles itself{heat}: a cool drive takes fewer seconds")
