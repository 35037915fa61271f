"""Identity of a process: PID, user and start time, which no other shares, even when its PID is reused; and its end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import psutil

from firmware_agent.common.atomic_files import read_file, replace_file

_MOST_BYTES = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ProcessMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process, as it is known again later.

    Attributes:
        pid: its number.
        uid: its user.
        begin: when it began, in a form that a change of the clock leaves as it is.
    """

    pid: Annotated[int, msgspec.Meta(gt=0)]
    uid: int
    begin: str

    def find(self) -> psutil.Process | None:
        """Return the process if it still is, running or a zombie, and this user's; signals go to it alone."""
        try:
            process = psutil.Process(self.pid)
            return process if self.uid == os.geteuid() and mark_of(self.pid) == self else None
        except psutil.Error:
            return None

    def save(self, path: Path) -> None:
        """Write it to `path`, for this user alone; `OSError` if it cannot be."""
        replace_file(path, msgspec.json.encode(self), 0o600)

    @classmethod
    def load(cls, path: Path) -> ProcessMark | None:
        """Return what `save` wrote; None if there is nothing, or it is damaged."""
        try:
            return msgspec.json.decode(read_file(path, _MOST_BYTES), type=cls)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


def mark_of(pid: int) -> ProcessMark | None:
    """Return the mark of a process; None if there is none of this number."""
    try:
        process = psutil.Process(pid)
        return ProcessMark(pid, process.uids().effective, _begin(process))
    except (psutil.Error, OSError, IndexError):
        return None


def _begin(process: psutil.Process) -> str:
    """Return ticks since the machine was started, and which start that was; elsewhere than on Linux the date."""
    if not _BOOT_ID.exists():
        return repr(process.create_time())
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return f"{fields[19]} {_BOOT_ID.read_text(encoding='ascii').strip()}"


def end_processes(processes: Sequence[psutil.Process], seconds: float) -> None:
    """End processes, also frozen ones; those that are there after `seconds` are killed."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)  # a frozen process would not see SIGTERM
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=seconds)
