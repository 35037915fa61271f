"""Energy of a real host from the RAPL counters of its processors, where the kernel shows them.

Each package has a counter of microjoules that wraps around. Its children (core, DRAM) are left out: the first is part
of the package already. Only root may read the counters on most systems.
"""

from __future__ import annotations

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class RaplMeter:
    """Joules of all processor packages since it was opened. Read it more often than a counter wraps: once a minute."""

    def __init__(self, zones: list[Path]) -> None:
        """Start at zero joules; `zones` are folders of package counters. See `open`."""
        self._zones = {zone: _read(zone / "max_energy_range_uj") for zone in zones}
        self._last = {zone: _read(zone / "energy_uj") for zone in zones}
        self._microjoules = 0

    @classmethod
    def open(cls, folder: Path = POWERCAP) -> RaplMeter | None:
        """Return a meter over the packages in `folder`; None where there are none, or they may not be read."""
        zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1]
        try:
            packages = [zone for zone in zones if (zone / "name").read_text().strip().startswith("package")]
            return cls(packages) if packages else None
        except (OSError, ValueError):
            return None

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


def _read(path: Path) -> int:
    return int(path.read_text())
