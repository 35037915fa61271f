"""What servers that meet do next, by where each of them stands. Pure.

Servers take turns together: before a step they say which drives they have, after it they add up gradients, after a
round they agree on what it came to. A turn is not atomic: when a server is lost in it, some of the others may have its
outcome while others do not. So whoever meets says first where it stands; those who are behind are brought up to those
who are furthest, and no step is taken twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import NamedTuple


class Stage(IntEnum):
    """Where in a step a server stands, in order."""

    BEGIN = 0
    """The steps before are done; it says which drives it has."""
    REDUCE = 1
    """Its drives have returned their gradients; they are not applied yet."""
    ROUND = 2
    """The step is applied, and a round ends with it."""


class Position(NamedTuple):
    """Where a server stands: at a stage of the step of this number, from 1."""

    step: int
    stage: Stage


class Act(Enum):
    """What a turn is for one server."""

    PROCEED = "proceed"
    """Take part, then go on."""
    GIVE = "give"
    """Hand the training's state to those behind, then turn again."""
    TAKE = "take"
    """Take over the state of one who is further."""
    WATCH = "watch"
    """Take part with nothing, then turn again: nobody's state can be handed over in the middle of a step."""
    WAIT = "wait"
    """Turn again: another hands its state to those behind."""


def acts(positions: Sequence[Position]) -> list[Act]:
    """Return what each server does, given where each of them stands, in rank order.

    The furthest proceed. If they are between two steps, the first of them gives its state to those behind before; in
    the middle of a step those behind watch it.
    """
    furthest = max(positions)
    if all(position == furthest for position in positions):
        return [Act.PROCEED] * len(positions)
    if furthest.stage is not Stage.BEGIN:
        return [Act.PROCEED if position == furthest else Act.WATCH for position in positions]
    giver = positions.index(furthest)
    return [
        Act.GIVE if rank == giver else Act.WAIT if position == furthest else Act.TAKE
        for rank, position in enumerate(positions)
    ]
