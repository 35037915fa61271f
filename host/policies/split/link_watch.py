"""Watch on what steps take beside computing: whether the link has changed since the first of them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

# So many steps in a row with the same batches say what is usual, and so many that it has changed: by more than this
# factor, and more than this share of a step. Where a step takes twice as long fewer are enough.
STEPS_IN_A_ROW, _ENOUGH_STEPS = 3, 2
_FACTOR, _SHARE, _LARGE_SHARE = 1.5, 0.15, 0.5


class LinkWatch(msgspec.Struct):
    """The last steps of a run.

    Attributes:
        batches: node -> records of the steps that are compared.
        usual: seconds that the first of these took beside the slowest node's computing.
        last: seconds beside computing, and in all, of the last ones.
    """

    batches: dict[str, int] = {}
    usual: list[float] = []
    last: list[tuple[float, float]] = []

    def observe(self, batches: Mapping[str, int], compute_seconds: float, step_seconds: float) -> bool:
        """Take a step; return whether the last ones took another time beside computing than the first ones."""
        beside_seconds = step_seconds - compute_seconds
        if self.batches != batches:
            self.batches, self.usual, self.last = dict(batches), [], []
        if len(self.usual) < STEPS_IN_A_ROW:
            self.usual.append(beside_seconds)
            return False
        self.last = [*self.last, (beside_seconds, step_seconds)][-STEPS_IN_A_ROW:]
        return self.changed

    @property
    def changed(self) -> bool:
        """Whether the last steps took another time beside computing than the first ones."""
        usual = max(0.0, statistics.median(self.usual))
        return _deviate(self.last, usual, _SHARE, STEPS_IN_A_ROW) or _deviate(
            self.last, usual, _LARGE_SHARE, _ENOUGH_STEPS
        )

    def begin(self) -> None:
        """Compare with the steps from now on."""
        self.batches, self.usual, self.last = {}, [], []


def _deviate(last: Sequence[tuple[float, float]], usual: float, share: float, count: int) -> bool:
    """Return whether the last `count` steps all took longer, or all less long, by so much."""
    steps = last[-count:]
    longer = all(beside > max(_FACTOR * usual, usual + share * whole) for beside, whole in steps)
    shorter = all(usual > max(_FACTOR * beside, beside + share * whole) for beside, whole in steps)
    return len(steps) == count and (longer or shorter)
