"""Disturbances of `bench planner`: one drive that other work slows for some steps, or from a moment on. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csd_lab.bench.planner.planner_ranges import KINDS, PlannerRanges
from csd_lab.bench.planner.planner_world import World

# The batch that a slowdown is drawn at: the slowest drive's (`planner_cases.TUNING`).
_AT_RECORDS = 32


@dataclass(frozen=True)
class DriveDisturbance:
    """Other work on a drive.

    Attributes:
        node: the drive.
        kind: of `planner_ranges.KINDS`.
        slowdown: of a step of 32 records.
        first_step, steps: when, counted in steps of the run from 0; of a blip.
        at_seconds: from when on, in the array's seconds; of a change for good. None for a blip.
    """

    node: str
    kind: str
    slowdown: float
    first_step: int = 0
    steps: int = 0
    at_seconds: float | None = None

    def slows_in(self, step: int, seconds: float) -> bool:
        """Return whether it slows the step of this number, which begins after so many seconds."""
        if self.at_seconds is not None:
            return seconds >= self.at_seconds
        return self.first_step <= step < self.first_step + self.steps

    def steps_until(self, step: int, seconds: float, step_seconds: float) -> float:
        """Return after how many steps of so many seconds it begins or ends; infinite if it does neither any more."""
        if self.at_seconds is not None:
            return (
                math.inf
                if seconds >= self.at_seconds
                else max(1.0, math.ceil((self.at_seconds - seconds) / step_seconds))
            )
        return next((at - step for at in (self.first_step, self.first_step + self.steps) if at > step), math.inf)

    def factors(self, world: World, batches: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray:
        """Return (batches,) the drive's seconds over the undisturbed ones, of batches of at least 1."""
        curve = world.curve_of(self.node)
        more = (self.slowdown - 1) * float(curve.seconds(np.array([_AT_RECORDS]))[0])
        own = curve.seconds(batches)
        if self.kind == "factor":
            return np.full(len(batches), self.slowdown)
        if self.kind == "extra":
            return np.asarray(1 + more / own)
        return np.asarray(1 + more * (batches - 1) / (_AT_RECORDS - 1) / own)


def draw_disturbance(
    generator: np.random.Generator, drives: Sequence[str], chosen: Sequence[str], ranges: PlannerRanges
) -> tuple[DriveDisturbance, float]:
    """Return a blip, and at what share of the best training the same comes for good.

    Args:
        generator: of everything.
        drives: of the array.
        chosen: those of them that the undisturbed planner chose.
        ranges: what is drawn from.
    """
    among = list(chosen) if chosen and generator.random() < ranges.chosen_chance else list(drives)
    node = among[int(generator.integers(len(among)))]
    kind = KINDS[int(generator.integers(len(KINDS)))]
    slowdown = float(np.exp(generator.uniform(*np.log(ranges.slowdown))))
    first = int(generator.integers(ranges.blip_first[0], ranges.blip_first[1] + 1))
    return DriveDisturbance(node, kind, slowdown, first, ranges.blip_steps), float(generator.uniform(*ranges.change_at))
