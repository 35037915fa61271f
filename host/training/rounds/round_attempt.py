"""A round until somebody answers: who is asked, who stands in, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import CsdError, DeviceFailed, DeviceLost
from host.config.participation import RoundSelection
from host.fleet.device_session import DeviceSession

# How often one device is asked in a round in which nobody has answered yet.
_ATTEMPTS = 3


class RoundAttempt:
    """One round until somebody answers: who was asked how often, and what went wrong."""

    def __init__(self, number: int, choice: RoundSelection) -> None:
        """Begin round `number`; nobody has been asked."""
        self.number, self._choice = number, choice
        self._chosen, self.reserves = frozenset(choice.chosen), frozenset(choice.reserves)
        self.counts: Counter[str] = Counter()
        self.errors: list[CsdError] = []
        self.patience: Deadline | None = None
        self._tried: set[DeviceSession] = set()

    def may_ask(self, device: str) -> bool:
        """Whether a device that dials in again is asked again: one that is lost every time ends some time."""
        return self.counts[device] < _ATTEMPTS

    def candidates(self, sessions: Mapping[str, DeviceSession]) -> list[DeviceSession]:
        """Return whom to ask now: the chosen ones, else as many others as were chosen; no session twice."""
        present = {d: session for d, session in sessions.items() if session not in self._tried and self.may_ask(d)}
        if chosen := [session for device, session in present.items() if device in self._chosen]:
            return chosen
        stand_ins = [device for device in self._choice.reserves if device in present][: len(self._choice.chosen)]
        return [session for device, session in present.items() if device in stand_ins]

    def begin(self, sessions: Sequence[DeviceSession]) -> None:
        """Note that these are asked."""
        self._tried.update(sessions)
        self.counts.update(session.device for session in sessions)

    def verdict(self) -> CsdError:
        """Return why the round has failed: what a device said of its task, else that all are lost."""
        failure = next((error for error in self.errors if isinstance(error, DeviceFailed)), None)
        last = f" ({self.errors[-1]})" if self.errors else ""
        return failure or DeviceLost(
            f"round {self.number}: no device returned its weights{last}; csd-emu status shows what is left"
        )
