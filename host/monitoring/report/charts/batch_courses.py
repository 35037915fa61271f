"""Batch sizes over steps: devices that go together share a line, so that dozens of them stay readable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_emu.util.node_names import HOST
from host.core.records import StepRecord

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Course:
    """The batch sizes of devices that always had the same.

    Attributes:
        devices: their names.
        sizes: (steps,) records; 0 while parked, NaN in steps without them.
    """

    devices: tuple[str, ...]
    sizes: Floats

    @property
    def label(self) -> str:
        """Their names, or how many more there are."""
        first, *rest = self.devices
        return first if not rest else f"{first} and {len(rest)} more"

    @property
    def changes(self) -> float:
        """How much they changed, in all, as a share of the largest batch."""
        known = self.sizes[np.isfinite(self.sizes)]
        return float(np.abs(np.diff(known)).sum() / max(1.0, known.max())) if known.size else 0.0


def list_courses(steps: Sequence[StepRecord]) -> list[Course]:
    """Return the courses of all devices, in the order in which the steps name them."""
    names = list(dict.fromkeys(part.device for step in steps for part in step.devices))
    rows = {name: row for row, name in enumerate(names)}
    sizes = np.full((len(names), len(steps)), np.nan)
    for column, step in enumerate(steps):
        for part in step.devices:
            sizes[rows[part.device], column] = part.batch_size
    groups: dict[bytes, list[str]] = {}
    for name in names:
        groups.setdefault(sizes[rows[name]].tobytes(), []).append(name)
    return [Course(tuple(group), sizes[rows[group[0]]]) for group in groups.values()]


def choose_courses(courses: Sequence[Course], most: int) -> tuple[list[Course], list[Course]]:
    """Return at most `most` courses to draw as lines, and the others, which share a band.

    The host's comes first, then those that changed most: what a reader looks for.
    """
    if len(courses) <= most:
        return list(courses), []
    ranked = sorted(courses, key=lambda course: (HOST not in course.devices, -course.changes))
    lines, others = set(ranked[: most - 1]), set(ranked[most - 1 :])
    return [course for course in courses if course in lines], [course for course in courses if course in others]


def change_points(sizes: Floats) -> list[int]:
    """Return the positions at which a course begins, changes or ends: enough to draw it."""
    same = (sizes[1:] == sizes[:-1]) | (np.isnan(sizes[1:]) & np.isnan(sizes[:-1]))
    return sorted({0, *(np.flatnonzero(~same) + 1).tolist(), len(sizes) - 1}) if len(sizes) else []
