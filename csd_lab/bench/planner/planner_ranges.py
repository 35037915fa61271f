"""Ranges that the disturbances of `bench planner` are drawn from.

Committed before the first run with the final seeds; those of the worlds around them are in
`csd_lab.bench.planner.planner_draws`. A pair is (least, most), drawn uniformly in its logarithm unless it is said
otherwise; whole numbers are drawn uniformly. All of it is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

Range = tuple[float, float]
WholeRange = tuple[int, int]
# How a device's seconds grow: all of them, each record beyond the first, or so much more in every step.
KINDS = ("factor", "bandwidth", "extra")


@dataclass(frozen=True)
class PlannerRanges:
    """What disturbances are drawn from: one drive of the planner's choice without any, or any drive, is slowed.

    Attributes:
        blip_first: the step before which a blip begins, counted from 0: within the first trials.
        blip_steps: how long it lasts.
        change_at: the share of the best training's seconds at which a change for good comes (uniform).
        slowdown: seconds of a step of 32 records over the undisturbed ones, of either.
        chosen_chance: with which the drive is one that the undisturbed planner chose; else it is any.
    """

    blip_first: WholeRange = (0, 10)
    blip_steps: int = 12
    change_at: Range = (0.15, 0.6)
    slowdown: Range = (1.3, 6.0)
    chosen_chance: float = 0.75
