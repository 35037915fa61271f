"""Energy of a real host from the RAPL counters of its processors, where the kernel shows them.

Each package has a counter of microjoules that wraps around. Its children (core, DRAM) are left out: the first is part
of the package already. Only root may read the counters on most systems.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Absent:
    """There are no counters to read, and why."""

    reason: str


class RaplMeter:
    """Joules of all processor packages since it was opened. Read it more often than a counter wraps: once a minute."""

    def __init__(self, zones: list[Path]) -> None:
        """Start at zero joules; `zones` are folders of package counters. See `open`."""
        self._zones = {zone: _read(zone / "max_energy_range_uj") for zone in zones}
        self._last = {zone: _read(zone / "energy_uj") for zone in zones}
        self._microjoules = 0

    @classmethod
    def open(cls, folder: Path = POWERCAP) -> RaplMeter | None:
        """Return a meter over the packages in `folder`, or None where there is nothing to read (see `probe`)."""
        found = probe(folder)
        return None if isinstance(found, Absent) else cls(found)

    @property
    def packages(self) -> int:
        """How many processor packages are counted."""
        return len(self._zones)

    def joules(self) -> float:
        """Return the joules since the meter was opened.

        Raises:
            OSError: a counter has gone.
        """
        for zone, wrap in self._zones.items():
            now = _read(zone / "energy_uj")
            step = now - self._last[zone]
            # The counter went past its largest value.
            self._microjoules += step if step >= 0 else step + wrap
            self._last[zone] = now
        return self._microjoules / 1e6


def probe(folder: Path = POWERCAP) -> list[Path] | Absent:
    """Return the folders of the package counters in `folder`, or why there are none."""
    zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1]
    packages = []
    for zone in zones:
        try:
            if (zone / "name").read_text().strip().startswith("package"):
                _read(zone / "energy_uj")
                _read(zone / "max_energy_range_uj")
                packages.append(zone)
        except PermissionError:
            return Absent(f"{zone / 'energy_uj'} may not be read; run as root, or have root allow it")
        except (OSError, ValueError) as error:
            return Absent(f"{zone} is no counter ({error})")
    return packages or Absent(f"{folder} has no counter of a processor package; virtual machines have none")


def _read(path: Path) -> int:
    return int(path.read_text())
