"""Turns between servers of one process and event loop: what unit tests use in place of workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from firmware_agent.common.slices import Array
from host.core.states.peer_servers import StateBehind
from host.training.multi_server.state_sync import Act, Position, next_actions
from host.training.multi_server.worker.worker_link import TurnOutcome


@dataclass
class _Asked:
    """A turn that a server waits for."""

    position: Position
    meta: bytes
    sums: tuple[Array, Array]
    give_state: Callable[[], bytes]
    outcome: asyncio.Future[TurnOutcome] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    again: int = 0


class InMemoryRendezvous:
    """Where the servers meet. A turn is over when every server that is there has asked for one."""

    def __init__(self, order: list[str]) -> None:
        """Begin with nobody; `order` is that of the servers file."""
        self._order, self._there = order, set[str]()
        self._asked: dict[str, _Asked] = {}
        # Servers that are cut off from the outcome of the next turn: the others have it, they meet anew without.
        self.deaf: set[str] = set()

    def enter(self, server: str) -> InMemoryTurns:
        """Let a server take part from now on."""
        self._there.add(server)
        self._meet_anew()
        return InMemoryTurns(self, server)

    def leave(self, server: str) -> None:
        """Note that a server is lost."""
        self._there.discard(server)
        self._asked.pop(server, None)
        self._meet_anew()
        self._settle()

    async def ask(self, server: str, asked: _Asked) -> TurnOutcome:
        """Take a turn for a server."""
        self._asked[server] = asked
        self._settle()
        return await asked.outcome

    def _meet_anew(self) -> None:
        for asked in self._asked.values():
            asked.again += 1

    def _settle(self) -> None:
        """Take turns as long as everybody has asked for one."""
        while self._there and self._asked.keys() == self._there:
            names = [name for name in self._order if name in self._there]
            asked = [self._asked[name] for name in names]
            doing = next_actions([each.position for each in asked])
            if Act.GIVE in doing:
                giver = doing.index(Act.GIVE)
                self._hand_over(names, doing, names[giver], asked[giver].give_state())
            else:
                self._proceed(names, doing)

    def _hand_over(self, names: list[str], doing: list[Act], giver: str, state: bytes) -> None:
        for name, act in zip(names, doing, strict=True):
            if act is Act.TAKE:
                self._asked.pop(name).outcome.set_exception(StateBehind(giver, state))

    def _proceed(self, names: list[str], doing: list[Act]) -> None:
        there = [name for name, act in zip(names, doing, strict=True) if act is Act.PROCEED]
        metas = {name: self._asked[name].meta for name in there}
        singles, doubles = (np.sum([self._asked[name].sums[kind] for name in there], axis=0) for kind in (0, 1))
        for name in [name for name in there if name not in self.deaf]:
            asked = self._asked.pop(name)
            asked.outcome.set_result(TurnOutcome(metas, singles.copy(), doubles.copy(), asked.again))
        self.deaf.clear()


class InMemoryTurns:
    """One server's turns (see `host.training.multi_server.server_membership.StateSync`)."""

    def __init__(self, meeting: InMemoryRendezvous, server: str) -> None:
        """Take part in a meeting."""
        self._meeting, self._server = meeting, server

    async def turn(
        self, position: Position, meta: bytes, sums: tuple[Array, Array], give_state: Callable[[], bytes]
    ) -> TurnOutcome:
        """Take a turn."""
        return await self._meeting.ask(self._server, _Asked(position, meta, sums, give_state))
