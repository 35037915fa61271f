"""Competing work in drives, scheduled by step in the job file, so that it starts at the same point in every run."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Sequence

from csd_emu.util.deadline import Deadline
from host.config.sync_section import MAX_WEIGHT, DisturbSection
from host.fleet.device_session import DeviceSession

SetCompetitor = Callable[[DeviceSession, int, Deadline], Awaitable[str]]
"""Gives a device a competing task of this weight, 0 for none; says what was done."""


def weight_at(disturb: Sequence[DisturbSection], device: str, step: int) -> int:
    """Return the cgroup weight of the competing work of `device` in `step`, 0 for none; of several, their sum."""
    now = (each for each in disturb if each.device == device and each.at_step <= step < each.at_step + each.steps)
    return min(MAX_WEIGHT, sum(each.weight for each in now))


class Disturbances:
    """Starts and ends competing work; one instance per run."""

    def __init__(self, disturb: Sequence[DisturbSection], set_competitor: SetCompetitor) -> None:
        """Take what the job file says, and what makes it so."""
        self._disturb, self._set_competitor = list(disturb), set_competitor
        # By session: what a device had is gone when it dials in anew.
        self._weights: weakref.WeakKeyDictionary[DeviceSession, int] = weakref.WeakKeyDictionary()

    def take_over(self, other: Disturbances) -> None:
        """Know what `other` has made so."""
        self._weights.update(other._weights)

    def at(self, step: int) -> dict[str, int]:
        """Return device -> weight of the competing work in a step."""
        weights = {each.device: weight_at(self._disturb, each.device, step) for each in self._disturb}
        return {device: weight for device, weight in weights.items() if weight}

    def changes(self, session: DeviceSession, step: int) -> bool:
        """Return whether a device's competing work begins, ends or changes with its step."""
        return weight_at(self._disturb, session.device, step) != self._weights.get(session, 0)

    async def apply(self, session: DeviceSession, step: int, deadline: Deadline) -> str | None:
        """Have a device's competing work be as the job file says before its step; return what changed, if anything.

        Raises:
            DeviceError: the device is lost, or cannot do it.
        """
        weight = weight_at(self._disturb, session.device, step)
        if weight == self._weights.get(session, 0):
            return None
        detail = await self._set_competitor(session, weight, deadline)
        self._weights[session] = weight
        return f"{detail} (disturb, step {step})"
