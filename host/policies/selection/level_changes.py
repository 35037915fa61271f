"""Levels of the nodes that train, against what the choice rested on: whose has changed for good. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import msgspec

# A level that most of the last so many steps had is there to stay: a blip is shorter.
STEPS_FOR_GOOD, MOST_OF_THEM = 24, 18
# A step takes longer, or less long, than expected by more than this share.
_CHANGED = math.log(1.2)
# What an exchange usually takes is known after so many steps with the same batches.
_USUAL_STEPS = 5
EXCHANGE = ""
"""Stands for the exchange among the nodes whose level has changed."""


class LevelChanges(msgspec.Struct):
    """The last steps of each node.

    Attributes:
        seen: node -> (records, seconds, seconds that were expected of so many records) of each of them.
        records: node -> records of the steps with which `usual` ones are compared.
        usual: seconds that the first of these steps took beside the slowest node's computing.
    """

    seen: dict[str, list[tuple[int, float, float]]] = {}
    records: dict[str, int] = {}
    usual: list[float] = []

    def observe(self, node: str, records: int, seconds: float, expected_seconds: float) -> None:
        """Take a step of a node; nothing of it if it returned nothing, or nothing was expected of it."""
        if records and seconds > 0 and expected_seconds > 0:
            self.seen[node] = [*self.seen.get(node, []), (records, seconds, expected_seconds)][-STEPS_FOR_GOOD:]

    def observe_step(self, records: Mapping[str, int], compute_seconds: float, step_seconds: float) -> None:
        """Take what the array did in a step: whether its exchange takes as long as it did with the same batches."""
        if self.records != records:
            self.records, self.usual = dict(records), []
        if len(self.usual) < _USUAL_STEPS:
            self.usual = [*self.usual, step_seconds - compute_seconds]
        else:
            expected_seconds = compute_seconds + max(0.0, statistics.median(self.usual))
            self.observe(EXCHANGE, sum(records.values()), step_seconds, expected_seconds)

    def changed(self) -> dict[str, list[tuple[int, float]]]:
        """Return (records, seconds) of nodes whose level is another one for good, without steps that say no."""
        every = {node: _changed_steps(steps) for node, steps in self.seen.items() if len(steps) == STEPS_FOR_GOOD}
        return {node: steps for node, steps in every.items() if len(steps) >= MOST_OF_THEM}


def _changed_steps(steps: list[tuple[int, float, float]]) -> list[tuple[int, float]]:
    levels = [math.log(seconds / expected) for _, seconds, expected in steps]
    side = math.copysign(1.0, sum(levels))
    pairs = zip(steps, levels, strict=True)
    return [(records, seconds) for (records, seconds, _), level in pairs if side * level > _CHANGED]
