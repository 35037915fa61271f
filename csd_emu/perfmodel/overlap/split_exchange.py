"""Stretch between the forward and the backward passes of a model that is cut between drives and host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from csd_emu.perfmodel.sharing import check_numbers
from firmware_agent.common.errors import ConfigurationError


@dataclass(frozen=True)
class SplitExchange:
    """What crosses the cut, and what the host computes.

    Attributes:
        push_bytes: of each drive, activations and labels; at least one.
        pull_bytes: of each drive, the gradient of its activations; at least one.
        host_seconds: forward and backward pass behind the cut, once all have arrived.
    """

    push_bytes: tuple[int, ...]
    pull_bytes: tuple[int, ...]
    host_seconds: float

    def __post_init__(self) -> None:
        """Refuse what is no turn."""
        if len(self.push_bytes) != len(self.pull_bytes) or min(*self.push_bytes, *self.pull_bytes) < 1:
            raise ConfigurationError("of a model that is cut, something crosses the cut both ways; give bytes for it")
        check_numbers("the host", {}, {"seconds behind the cut": self.host_seconds})


class SplitExchangeState:
    """The turn of the step that is under way, for groups of drives that do the same.

    Attributes:
        push_bytes, pull_bytes: of each group's drives, see `SplitExchange`.
        host_seconds: see `SplitExchange`.
        ready_seconds: when the host will have computed; infinity until it has begun to.
    """

    def __init__(self, crossing: Sequence[tuple[int, int]], host_seconds: float) -> None:
        """Take (push, pull) bytes of each group."""
        self.push_bytes = [push for push, _ in crossing]
        self.pull_bytes = [pull for _, pull in crossing]
        self.ready_seconds = math.inf
        self.host_seconds = host_seconds
        self._reached: set[int] = set()
        self._push_left, self._pull_left = list(self.push_bytes), list(self.pull_bytes)

    def reach(self, group: int) -> None:
        """Note that a group's forward pass has ended; the host's own part is a group without bytes."""
        self._reached.add(group)

    def pushed(self, group: int, size_bytes: int) -> None:
        """Take activations at the host."""
        self._push_left[group] -= size_bytes

    def pulled(self, group: int, size_bytes: int) -> bool:
        """Take gradients at a drive; return whether all of them have come."""
        self._pull_left[group] -= size_bytes
        return self._pull_left[group] == 0

    def begin(self, now: float, groups: int) -> bool:
        """Have the host begin if it has everything of so many groups; return whether it has computed by now."""
        if self.ready_seconds == math.inf and len(self._reached) == groups and not any(self._push_left):
            self.ready_seconds = now + self.host_seconds
        if self.ready_seconds > now:
            return False
        self._reached.clear()
        self._push_left, self._pull_left = list(self.push_bytes), list(self.pull_bytes)
        self.ready_seconds = math.inf
        return True
