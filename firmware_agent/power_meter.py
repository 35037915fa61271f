"""Power of a real drive by its own sensor, where the kernel shows one (hwmon).

A counter of energy is read at both ends of a task. A sensor of power alone is read several times a second meanwhile,
and the watts are integrated.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firmware_agent.common.frames.frame_fields import Metered

HWMON = Path("/sys/class/hwmon")
# By kind, the best first: joules counted, watts averaged by the sensor, watts of the moment; all in millionths.
_KINDS = ("energy{}_input", "power{}_average", "power{}_input")
_MICRO = 1e-6
_SAMPLE_SECONDS = 0.1
# Of several sensors, the one of the whole drive is called so.
_WHOLE = ("total", "board", "system", "input", "drive")


@dataclass(frozen=True)
class Sensor:
    """One sensor of hwmon.

    Attributes:
        path: the file to read.
        counts: whether it counts energy (microjoules); else it shows power (microwatts).
        name: chip and label, for the record.
    """

    path: Path
    counts: bool
    name: str

    def read(self) -> float:
        """Return joules or watts.

        Raises:
            OSError, ValueError: the sensor has gone, or says something else.
        """
        return int(self.path.read_text(encoding="ascii")) * _MICRO


def find_sensor(folder: Path = HWMON) -> Sensor | str:
    """Return the sensor of the whole drive, or why there is none."""
    found: dict[tuple[str, str], Sensor] = {}
    for chip in sorted(folder.glob("hwmon*")):
        for kind in _KINDS:
            for path in sorted(chip.glob(kind.format("*"))):
                if (sensor := _sensor(chip, path, kind)) is not None:
                    found.setdefault((chip.name, sensor.name), sensor)
    if not found:
        return f"no power sensor in {folder}"
    if len(found) == 1:
        return next(iter(found.values()))
    whole = [each for each in found.values() if any(word in each.name.lower() for word in _WHOLE)]
    if len(whole) == 1:
        return whole[0]
    names = ", ".join(sensor.name for sensor in found.values())
    return f"several power sensors ({names}), and none or several are called that of the whole drive"


class PowerMeter:
    """Measures tasks one after the other; a thread of its own reads a sensor of power meanwhile."""

    def __init__(
        self, sensor: Sensor, now: Callable[[], float] = time.monotonic, sample_seconds: float = _SAMPLE_SECONDS
    ) -> None:
        """Take a sensor that was found; `now` returns monotonic seconds."""
        self.sensor = sensor
        self._now, self._sample_seconds = now, sample_seconds
        self._points: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._sampler: threading.Thread | None = None

    def begin(self) -> None:
        """Begin with a task."""
        self._end_sampling()
        self._points = []
        self._look()
        if not self.sensor.counts:
            self._over = threading.Event()
            self._sampler = threading.Thread(target=self._sample, args=(self._over,), daemon=True)
            self._sampler.start()

    def end(self) -> Metered | None:
        """Return joules and seconds since `begin`; None if the sensor could not be read at both ends."""
        self._end_sampling()
        self._look()
        return measure(self._points, self.sensor.counts)

    def _end_sampling(self) -> None:
        self._over.set()
        if self._sampler is not None:
            self._sampler.join()
            self._sampler = None

    def _sample(self, over: threading.Event) -> None:
        while not over.wait(self._sample_seconds):
            self._look()

    def _look(self) -> None:
        try:
            self._points.append((self._now(), self.sensor.read()))
        except (OSError, ValueError):  # it has gone, or is asleep
            return


def measure(points: list[tuple[float, float]], counts: bool) -> Metered | None:
    """Return what readings of a sensor say: joules between the first and the last, and the seconds between them.

    Args:
        points: (seconds, joules or watts), in order of time.
        counts: whether they are joules that were counted; else watts, which are taken to change evenly in between.
    """
    if len(points) < 2:
        return None
    seconds = points[-1][0] - points[0][0]
    means = ((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
    joules = points[-1][1] - points[0][1] if counts else sum(means)
    # A counter that was set back, by a reset of its chip, says nothing.
    return Metered(joules, seconds) if joules >= 0 and seconds > 0 else None


def _sensor(chip: Path, path: Path, kind: str) -> Sensor | None:
    number = path.name.removeprefix(kind.split("{")[0]).split("_")[0]
    quantity = kind.split("{")[0]
    label = _text(chip / f"{quantity}{number}_label") or number
    sensor = Sensor(path, quantity == "energy", f"{_text(chip / 'name') or chip.name} {label}")
    try:
        sensor.read()
    except (OSError, ValueError):
        return None
    return sensor


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
