"""Training of the nodes that a planner has chosen: who tunes them, and whether to look at the choice again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from host.core.tuning.batch_tuner import Batches, BatchTuner, Floats, StepCost
from host.policies.selection.level_changes import STEPS_FOR_GOOD, LevelChanges

# Batches that differ by no more than this share are no reason to begin anew.
_ALIKE = 0.1


@dataclass
class ChosenTraining:
    """The nodes that were chosen.

    Attributes:
        chosen: numbers of the nodes that train, and their batches to begin with.
        inner: tunes them.
        beside_seconds: of a step with these batches, that it takes beside the slowest node's computing, as measured.
        records: that they train on in all.
        levels: of them; None where nothing is looked at again.
        due: whether to look at who trains again: a level has changed for good, or somebody came or went.
        stale: whether its batches are of an exchange that takes another time now.
        noise_records: the gradient noise scale as of the last step.
    """

    chosen: dict[int, int]
    inner: BatchTuner
    beside_seconds: float | None = None
    records: float = 0.0
    levels: LevelChanges | None = None
    due: bool = False
    stale: bool = False
    noise_records: float | None = None
    # Seconds in which each node is expected to compute a record with so many per step of all devices.
    _expected: tuple[tuple[int, ...], Mapping[str, float]] = field(default=((), {}))

    def begin(self, records: float, levels: LevelChanges | None) -> None:
        """Train from now on, on so many records in all, with what was seen of `levels`, or without any."""
        self.records, self.levels, self.due, self.stale, self._expected = records, levels, False, False, ((), {})

    def is_kept(self, chosen: Mapping[int, int], here: npt.NDArray[np.bool_]) -> bool:
        """Return whether a new choice, with its batches, is so like this one that who tunes it goes on."""
        if chosen.keys() != {number for number in self.chosen if here[number]}:
            return False
        own = dict(zip(self.chosen, self.inner.batches.tolist(), strict=True))
        return not self.stale or all(abs(batch - own[number]) <= _ALIKE * batch for number, batch in chosen.items())

    def watch(self, cost: StepCost, nodes: Sequence[str]) -> None:
        """Take what a step cost the whole array, unless its batches are others, as in an epoch's last step."""
        self.noise_records = cost.noise_records
        wanted = {nodes[n]: own for n, own in zip(self.chosen, self.inner.batches.tolist(), strict=True) if own}
        if self.levels is not None and not cost.missing and dict(cost.records) == wanted:
            self.levels.observe_step(cost.records, max(cost.compute_seconds.values(), default=0.0), cost.array_seconds)

    def watch_levels(
        self,
        nodes: Sequence[str],
        batches: Batches,
        compute_seconds: Floats,
        steps_left: int,
        expect: Callable[[Mapping[str, int]], Mapping[str, float]],
    ) -> None:
        """Take what each node computed in a step; it is `due` to look again if the level of one has changed for good.

        Args:
            nodes: names of all devices.
            batches: (devices,) records per step.
            compute_seconds: (chosen devices,) in the order of `chosen`.
            steps_left: of the run; with few a look is not worth its cost.
            expect: returns node -> seconds in which a record is expected to be computed, of nodes with these batches.
        """
        if self.levels is None or steps_left <= STEPS_FOR_GOOD:
            return
        if self._expected[0] != (key := tuple(batches.tolist())):
            self._expected = key, expect({node: batch for node, batch in zip(nodes, key, strict=True) if batch})
        for number, seconds in zip(self.chosen, compute_seconds.tolist(), strict=True):
            node, batch = nodes[number], int(batches[number])
            self.levels.observe(node, batch, seconds, batch * self._expected[1].get(node, 0.0))
        self.due = self.due or bool(self.levels.changed())
