"""A link shaped by a relay: a process beside the array, found again by the folder in its command line."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import psutil

from csd_emu.engines.shaping.relay import LOG_FILE, READY, SETTINGS_FILE, RelaySettings
from csd_emu.engines.shaping.shaper import Shape, Shaper
from csd_emu.util.process_identity import end_processes
from firmware_agent.common.atomic_files import make_folder, replace_file
from firmware_agent.common.errors import EnvironmentUnfit

LINK_FOLDER = "link"
_STOP_SECONDS = 5.0
_HOST = "127.0.0.1"
_RELAY = [sys.executable, "-P", "-m", "csd_emu.engines.shaping.relay"]


class RelayedLink(Shaper):
    """Link that needs no right: drives dial another loopback address, where a relay listens."""

    def __init__(self, arrays_folder: Path, array: str, shape: Shape) -> None:
        """Prepare for the array of that name, below the folder of all arrays."""
        self._array, self._shape, self._folder = array, shape, arrays_folder / array / LINK_FOLDER
        # A loopback address of the array's own.
        first, second, third = hashlib.sha256(array.encode()).digest()[:3]
        self.dial_address = f"127.{64 + first % 128}.{second}.{1 + third % 254}"
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def connect(self, port: int) -> None:
        """Start the relay (see `Shaper.connect`)."""
        with self._lock:
            if _find(self._folder):
                return
            make_folder(self._folder, 0o755)
            shape = self._shape
            self._write(RelaySettings(self.dial_address, _HOST, port, shape.bytes_per_second, shape.latency_seconds))
            with open(self._folder / LOG_FILE, "wb") as log:
                child = subprocess.Popen(
                    [*_RELAY, str(self._folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            self._child = child
            if child.stdout is None or child.stdout.readline() != READY:
                child.kill()
                child.wait()
                raise EnvironmentUnfit(f"array {self._array!r}: its relay did not start: {self._last_words()}")
            child.stdout.close()

    def change(self, shape: Shape) -> None:
        """Have the relay take another shape (see `Shaper.change`)."""
        with self._lock:
            settings = msgspec.json.decode((self._folder / SETTINGS_FILE).read_bytes(), type=RelaySettings)
            rate, latency = shape.bytes_per_second, shape.latency_seconds
            self._write(msgspec.structs.replace(settings, bytes_per_second=rate, latency_seconds=latency))
            found = _find(self._folder)
        if not found:
            raise self._gone()
        for process in found:
            process.send_signal(signal.SIGHUP)

    def check(self) -> None:
        """See `Shaper.check`."""
        if not _find(self._folder):
            raise self._gone()

    def close(self) -> None:
        """End the relay."""
        end_relay(self._folder)
        if self._child is not None:
            self._child.wait()
            self._child = None

    def _write(self, settings: RelaySettings) -> None:
        replace_file(self._folder / SETTINGS_FILE, msgspec.json.encode(settings))

    def _gone(self) -> EnvironmentUnfit:
        return EnvironmentUnfit(
            f"array {self._array!r}: the relay of its shaped link has ended, so no drive reaches the host; it said: "
            f"{self._last_words()}; csd-emu clean {self._array}, then start it again"
        )

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            if lines := (self._folder / LOG_FILE).read_text(encoding="utf-8", errors="replace").split("\n")[-3:]:
                return " ".join(line for line in lines if line) or "nothing"
        return "nothing"


def end_relay(folder: Path) -> None:
    """End the relay with this folder, whichever process started it, if there is one."""
    end_processes(_find(folder), _STOP_SECONDS)


def _find(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[1:] == [*_RELAY[1:], str(folder)] and process.uids().real == os.geteuid():
                found.append(process)
    return found
