"""Exchanges within a round: the drives of a round that are still at work meet, and one answer goes to all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from firmware_agent.common.slices import Array

Brought = Mapping[str, Mapping[str, Array]]
"""Device -> name -> array."""
Answer = Callable[[int, Brought], Brought]
"""Returns what each device gets, given the exchange's number in the round, from 1, and what they brought."""


class DriveMeeting:
    """Where the drives of a round wait for each other; one instance per round."""

    def __init__(self, devices: Iterable[str], answer: Answer) -> None:
        """Expect all of `devices`; `answer` may block."""
        self._expected, self._answer = set(devices), answer
        self._number = 1
        self._brought: dict[str, Mapping[str, Array]] = {}
        self._answered: asyncio.Future[Brought] = asyncio.get_running_loop().create_future()
        self._answering: asyncio.Task[None] | None = None

    async def meet(self, device: str, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the answer, once everybody who is expected has come or left.

        Raises:
            BaseException: what `answer` raised.
        """
        answered = self._answered
        self._brought[device] = arrays
        self._look()
        return (await asyncio.shield(answered))[device]

    def leave(self, device: str) -> None:
        """Expect this device no more: it has done the round, or is lost."""
        self._expected.discard(device)
        self._brought.pop(device, None)
        self._look()

    def _look(self) -> None:
        if self._brought and self._expected <= self._brought.keys():
            self._answering = asyncio.create_task(self._close(self._number, self._brought, self._answered))
            self._number, self._brought = self._number + 1, {}
            self._answered = asyncio.get_running_loop().create_future()

    async def _close(self, number: int, brought: Brought, answered: asyncio.Future[Brought]) -> None:
        try:
            answered.set_result(await asyncio.to_thread(self._answer, number, brought))
        except Exception as error:  # it is raised where the answer is waited for
            answered.set_exception(error)
