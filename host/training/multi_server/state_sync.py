"""Next actions of servers that meet, by where each of them stands. Pure.

Servers take turns together: before a step they say which drives they have, after it they add up gradients, after a
round they agree on what it came to. A turn is not atomic: when a server is lost in it, some of the others may have its
outcome while others do not. So whoever meets says first where it stands; those who are behind are brought up to those
who are furthest, and no step is taken twice.

Weights are equal on all servers by calculation alone, so now and then servers compare them too: whoever has others than
most is behind, wherever it stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple


class Stage(IntEnum):
    """Where in a step a server stands, in order."""

    BEGIN = 0
    """The steps before are done; it says which drives it has."""
    REDUCE = 1
    """Its drives have returned their gradients; they are not applied yet."""
    ROUND = 2
    """The steps before are done, and a round ends with them."""


class Position(NamedTuple):
    """Where a server stands, further the greater: each turn leads to a greater one.

    A step of which nobody returned anything begins anew, and so does one for which the epoch had no record left: step
    and stage alone would go back then.

    Attributes:
        step: that is to be done next, from 1.
        turn: how many turns were taken before, by this server or those whose state it has taken over.
        stage: of the step.
    """

    step: int
    turn: int
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


def next_actions(positions: Sequence[Position]) -> list[Act]:
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


def diverged_servers(hashes: Mapping[str, bytes]) -> list[str]:
    """Return which servers' weights are not those of the most, given a hash of each one's; b"" of one that has none.

    Where as many have others, the first server's count: two cannot outvote each other.
    """
    told = {server: digest for server, digest in hashes.items() if digest}
    # The first of equals comes first.
    common = max(told.values(), key=Counter(told.values()).__getitem__, default=b"")
    return [server for server, digest in told.items() if digest != common]
