"""Levels of the nodes that train, against what the choice rested on: whose has changed for good. Pure."""

from __future__ import annotations

import math

import msgspec

# A level that most of the last so many steps had is there to stay: a blip is shorter.
STEPS_FOR_GOOD, MOST_OF_THEM = 24, 18
# A record takes longer, or less long, by more than this share.
_CHANGED = math.log(1.2)


class LevelChanges(msgspec.Struct):
    """The last steps of each node.

    Attributes:
        expected: node -> seconds that a record of it was expected to take, with the batches that were chosen.
        steps: node -> (records, seconds) of each of them.
    """

    expected: dict[str, float]
    steps: dict[str, list[tuple[int, float]]] = {}

    def observe(self, node: str, records: int, seconds: float) -> None:
        """Take a step of a node; nothing of it if it returned nothing, or nothing was expected of it."""
        if node in self.expected and records and seconds > 0:
            self.steps[node] = [*self.steps.get(node, []), (records, seconds)][-STEPS_FOR_GOOD:]

    def changed(self) -> dict[str, list[tuple[int, float]]]:
        """Return the steps of the nodes whose level is another one for good, without those that say otherwise."""
        every = {node: self._changed_steps(node, steps) for node, steps in self.steps.items()}
        full = {node for node, steps in self.steps.items() if len(steps) == STEPS_FOR_GOOD}
        return {node: steps for node, steps in every.items() if node in full and len(steps) >= MOST_OF_THEM}

    def _changed_steps(self, node: str, steps: list[tuple[int, float]]) -> list[tuple[int, float]]:
        levels = [math.log(seconds / records / self.expected[node]) for records, seconds in steps]
        side = math.copysign(1.0, sum(levels))
        return [step for step, level in zip(steps, levels, strict=True) if side * level > _CHANGED]
