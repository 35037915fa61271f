"""The most memory that this process had in RAM since some moment."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

_PROCESS = Path("/proc/self")
# Written to clear_refs it sets the high-water mark back to what is in use now (proc(5)).
_RESET_PEAK = "5"


class PeakMemory:
    """Counts from its making on, where the kernel lets it.

    Attributes:
        source: ``VmHWM`` if the kernel's high-water mark was reset, so that `peak_bytes` is of this object's life;
            ``ru_maxrss`` if it could not be, and it is of the process's whole life.
    """

    def __init__(self, process: Path = _PROCESS) -> None:
        """Give unused memory back, then reset the mark; `process` is this process's folder in /proc."""
        self._status = process / "status"
        _release_unused()
        try:
            (process / "clear_refs").write_text(_RESET_PEAK, encoding="ascii")
            _read_mark(self._status)
            self.source = "VmHWM"
        except (OSError, ValueError):
            self.source = "ru_maxrss"

    def peak_bytes(self) -> int:
        """Return the peak in bytes, pages of files that are mapped included."""
        if self.source == "VmHWM":
            return _read_mark(self._status)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def high_water_bytes(process: Path = _PROCESS) -> int:
    """Return this process's high-water mark as it stands, resetting nothing; 0 where the kernel does not tell."""
    try:
        return _read_mark(process / "status")
    except (OSError, ValueError):
        return 0


def _read_mark(status: Path) -> int:
    for line in status.read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"{status} has no VmHWM")


def _release_unused() -> None:
    """Have glibc give back what it keeps free, or the peak would hold what an earlier, larger batch left."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
