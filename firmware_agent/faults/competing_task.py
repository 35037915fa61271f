"""A slowdown is a competing runnable task beside the trainer, weighed against it by cgroups.

A CPU quota would make the device idle, and idle time is not device time; a competitor only takes its share. The task is
gzip over an endless stream of zeros, from and to memory: it is always runnable, and waits for no disk.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from firmware_agent.common.errors import DeviceFailed

CGROUP_ROOT = Path("/sys/fs/cgroup")
TRAINER_GROUP = "trainer"
TRAINER_WEIGHT = 100
_COMPRESSOR = ("gzip", "-9", "-c")


class Disturbance:
    """At most one competing task, in a cgroup beside the trainer's."""

    def __init__(self, group: Path | None) -> None:
        """Take the delegated cgroup that holds the two (see `delegated_group`), or None where there is none."""
        self._group = group
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether a competing task runs."""
        return self._process is not None

    def set_weight(self, weight: int) -> None:
        """Run the competing task at `weight` (the trainer has 100); 0 ends it.

        Raises:
            DeviceFailed: this device has no delegated cgroup, so weights would mean nothing.
        """
        if weight == 0:
            return self._end()
        if self._group is None:
            raise DeviceFailed("this device cannot run a competing task: its agent has no cgroup of its own; use qemu")
        competitor = self._group / "competitor"
        competitor.mkdir(exist_ok=True)
        (competitor / "cpu.weight").write_text(str(weight))
        if self._process is None:
            self._process = _compress_endlessly()
            (competitor / "cgroup.procs").write_text(str(self._process.pid))
        return None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _compress_endlessly() -> subprocess.Popen[bytes]:
    try:
        with open("/dev/zero", "rb") as zeros:
            return subprocess.Popen(_COMPRESSOR, stdin=zeros, stdout=subprocess.DEVNULL)
    except OSError as error:
        raise DeviceFailed(f"this device cannot run a competing task: {error}; install gzip on it") from error


def delegated_group() -> Path | None:
    """Split the service's own cgroup into ``trainer`` (this process) and room for a competitor.

    Returns:
        The service's cgroup, or None if this process was not started by systemd with ``Delegate=cpu``.
    """
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="ascii").strip().rpartition(":")[2]
        if (group := CGROUP_ROOT / own.lstrip("/")) == CGROUP_ROOT:
            return None
        trainer = group / TRAINER_GROUP
        trainer.mkdir(exist_ok=True)
        (trainer / "cgroup.procs").write_text(str(os.getpid()))
        (group / "cgroup.subtree_control").write_text("+cpu")
        (trainer / "cpu.weight").write_text(str(TRAINER_WEIGHT))
    except OSError:
        return None
    return group
