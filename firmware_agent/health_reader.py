"""Health of the drive as its root helper leaves it: files of nvme-cli's logs, for the agent may not ask the drive."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from firmware_agent.common.errors import HealthLogRefused
from firmware_agent.common.health.drive_health import DriveHealth, IoCounters
from firmware_agent.common.health.health_log import MAX_LOG_BYTES, decode_health

log = logging.getLogger(__name__)
# Below the agent's folder; the control script of the drive (``csd-agent watch-health``) writes these files.
FOLDER, SMART, OCP = "health", "smart.json", "ocp.json"
# The helper writes twice a minute. What is older than this tells nothing of now: it has ended, or nvme has failed.
_STALE_SECONDS = 120.0


class HealthReader:
    """Reads the files again when they are new."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        """Read files of `folder`, if there are any; `now` returns seconds as the modification times of files do."""
        self._folder, self._now = folder, now
        self._seen: tuple[bytes | None, bytes | None] = None, None
        self._health: DriveHealth | None = None
        self._before: IoCounters | None = None
        self._warned: set[str] = set()

    def begin(self) -> None:
        """Count what the host reads and writes from here on."""
        self._before = getattr(self.read(), "io", None)

    def read(self) -> DriveHealth | None:
        """Return what the drive last said; None if it has said nothing lately, or nothing that can be believed."""
        smart, ocp = logs = self._load(SMART), self._load(OCP)
        if logs != self._seen:
            self._seen, self._health = logs, None if smart is None else self._decode(smart, ocp)
        if self._health is None or self._before is None:
            return self._health
        return msgspec.structs.replace(self._health, io_of_job=self._health.io.since(self._before))

    def _load(self, name: str) -> bytes | None:
        path = self._folder / name
        try:
            if abs(self._now() - path.stat().st_mtime) > _STALE_SECONDS:
                return None
            with path.open("rb") as file:
                return file.read(MAX_LOG_BYTES + 1)
        except OSError:  # no helper, or none that has found nvme-cli
            return None

    def _decode(self, smart: bytes, ocp: bytes | None) -> DriveHealth | None:
        """Return what both logs say, the first alone if the second is refused; what is wrong is logged once."""
        try:
            return decode_health(smart, ocp)
        except HealthLogRefused as error:
            if str(error) not in self._warned:
                self._warned.add(str(error))
                log.warning("%s", error)
        return None if ocp is None else self._decode(smart, None)
