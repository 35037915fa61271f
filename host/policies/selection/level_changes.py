"""Levels of the nodes that train, against what the choice rested on: whose has changed for good. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# A level that most of the last so many steps had is there to stay: a blip is shorter.
STEPS_FOR_GOOD, MOST_OF_THEM = 24, 18
# A record takes longer, or less long, by more than this share.
_CHANGED = math.log(1.2)


class LevelChanges:
    """The last steps of each node: (records, seconds) of each."""

    def __init__(self, expected: Mapping[str, float]) -> None:
        """Take what a record of each node is expected to take, with the batches that were chosen; in seconds."""
        self._expected, self._steps = dict(expected), {node: list[tuple[int, float]]() for node in expected}

    def observe(self, node: str, records: int, seconds: float) -> None:
        """Take a step of a node; nothing of it if it returned nothing."""
        if node in self._steps and records and seconds > 0:
            self._steps[node] = [*self._steps[node], (records, seconds)][-STEPS_FOR_GOOD:]

    def changed(self) -> dict[str, list[tuple[int, float]]]:
        """Return the steps of the nodes whose level is another one for good, without those that say otherwise."""
        every = {node: self._changed_steps(node, steps) for node, steps in self._steps.items()}
        return {node: steps for node, steps in every.items() if len(steps) >= MOST_OF_THEM}

    def _changed_steps(self, node: str, steps: list[tuple[int, float]]) -> list[tuple[int, float]]:
        if len(steps) < STEPS_FOR_GOOD:
            return []
        levels = [math.log(seconds / records / self._expected[node]) for records, seconds in steps]
        side = math.copysign(1.0, sum(levels))
        return [step for step, level in zip(steps, levels, strict=True) if side * level > _CHANGED]

    def state(self) -> dict[str, Any]:
        """Return all that it knows, as JSON takes it."""
        return {"expected": self._expected, "steps": self._steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self._expected = dict(state["expected"])
        self._steps = {
            node: [(int(records), float(own)) for records, own in each] for node, each in state["steps"].items()
        }
