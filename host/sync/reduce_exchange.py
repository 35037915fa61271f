"""Sums within a step, for batch normalisation over all participants: one array of each, the same sum to each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from firmware_agent.errors import ProtocolError
from firmware_agent.wire import Reduce

_ITEM_BYTES = 8
# Two per layer with statistics and part of the records: far more than any step has.
MAX_SUMS = 1 << 16


class _Sum:
    """One exchange: what has come in, and the result once all who are left have sent theirs."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.parts: dict[str, npt.NDArray[np.float64]] = {}
        self.done = asyncio.Event()
        self.result = b""

    def finish(self, participants: Sequence[str]) -> None:
        """Add up in participant order."""
        total = np.zeros(self.size_bytes // _ITEM_BYTES)
        for device in participants:
            total += self.parts[device]
        self.result = total.astype("<f8").tobytes()
        self.done.set()


class Reductions:
    """The sums of one step.

    A participant that is lost is dropped with what it sent of sums that are not done, so that nobody waits for it.
    """

    def __init__(self, participants: Sequence[str]) -> None:
        """Begin a step of these devices; sums run in this order."""
        self._participants = list(participants)
        self._next = dict.fromkeys(participants, 0)
        self._sums: dict[int, _Sum] = {}

    async def add(self, device: str, frame: Reduce) -> bytes:
        """Take one participant's values; return their sum when those of all who are left are there.

        How long that may take is the caller's to limit; a caller that gives up must call `leave`.

        Raises:
            ProtocolError: the device does not take part, this is not its next exchange, or the size is not that of the
                others' values. Nothing is changed.
        """
        pending = self._pending(device, frame)
        self._sums[frame.index] = pending
        self._next[device] += 1
        pending.parts[device] = np.frombuffer(frame.values, "<f8")
        self._finish_complete()
        await pending.done.wait()
        return pending.result

    def leave(self, device: str) -> None:
        """Go on without this device; if it has left already, or never was there, nothing happens."""
        if device not in self._participants:
            return
        self._participants.remove(device)
        self._finish_complete()

    def _pending(self, device: str, frame: Reduce) -> _Sum:
        if device not in self._participants:
            raise ProtocolError(f"{device} sent values to add up in a step that it does not take part in")
        if frame.index >= MAX_SUMS:
            raise ProtocolError(f"{device} sent values for more than {MAX_SUMS} sums in one step")
        if frame.index != self._next[device]:
            raise ProtocolError(f"{device} sent values for sum {frame.index}, its next is {self._next[device]}")
        pending = self._sums.get(frame.index) or _Sum(len(frame.values))
        if len(frame.values) != pending.size_bytes or len(frame.values) % _ITEM_BYTES:
            raise ProtocolError(
                f"{device} sent {len(frame.values)} bytes for sum {frame.index}, where {pending.size_bytes} were due; "
                "do all drives run the same model?"
            )
        return pending

    def _finish_complete(self) -> None:
        for index, pending in list(self._sums.items()):
            if self._participants and all(device in pending.parts for device in self._participants):
                pending.finish(self._participants)
                del self._sums[index]
