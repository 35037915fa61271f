"""What was decided in a run of which devices train with how many records, and how much of it two runs have alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from host.core.records import RoundRecord
from host.policies.selection.selection_report import read_plan

# Batch sizes of one decision are equal if they differ by no more than this share of the larger one, or by one record.
SIZE_TOLERANCE = 0.02
_ONE_RECORD = 1


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided of a step.

    Attributes:
        step: the first that has it.
        what: ``beginning``, ``retune``, ``placement`` or ``plan``.
        batches: device -> records per step, of those that have any.
        choice: the layer that the host's part begins with, or the configuration that trains; else empty.
    """

    step: int
    what: str
    batches: dict[str, int]
    choice: str = ""

    def equals(self, other: Decision) -> bool:
        """Return whether they are of the same step, devices and choice, with batch sizes that are nearly equal."""
        alike = (self.step, self.what, self.choice) == (other.step, other.what, other.choice)
        if not alike or self.batches.keys() != other.batches.keys():
            return False
        pairs = ((size, other.batches[device]) for device, size in self.batches.items())
        return all(abs(one - two) <= max(_ONE_RECORD, SIZE_TOLERANCE * max(one, two)) for one, two in pairs)


def read_decisions(rounds: Sequence[RoundRecord], directory: Path) -> list[Decision]:
    """Return what was decided in a run, in order; nothing of a federated one."""
    steps = [step for record in rounds for step in record.steps]
    if not steps:
        return []
    first = {part.device: part.batch_size for part in steps[0].devices}
    found = [Decision(step=steps[0].step, what="beginning", batches=first)]
    layer = ""
    for step in steps:
        placed = "" if step.placement is None else step.placement.layer
        if placed != layer:
            found.append(Decision(step=step.step, what="placement", batches={}, choice=placed))
            layer = placed
    for retune in (retune for record in rounds for retune in record.retunes):
        batches = {device: size for device, size in retune.after.items() if size}
        found.append(Decision(step=retune.step, what="retune", batches=batches))
    if (plan := read_plan(directory)) is not None:
        found.append(Decision(step=plan.step, what="plan", batches={}, choice=plan.chosen.name))
    return found


def decisions_of_both(one: Sequence[Decision], other: Sequence[Decision]) -> list[Decision]:
    """Return the decisions of `one` that `other` has too, in order; each counts once."""
    left, found = list(other), []
    for decision in one:
        match = next((each for each in left if decision.equals(each)), None)
        if match is not None:
            left.remove(match)
            found.append(decision)
    return found


def equal_decisions(one: Sequence[Decision], other: Sequence[Decision]) -> tuple[int, int]:
    """Return how many decisions two runs have alike, and how many there are in either: each counts once."""
    equal = len(decisions_of_both(one, other))
    return equal, len(one) + len(other) - equal
