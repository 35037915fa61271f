"""Several servers on fake drives in one process and event loop, which meet in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.servers_file import ServerLink
from csd_emu.util.node_names import HOST
from host.core.records import EventKind, RoundRecord
from host.training.multi_server.server_membership import ServersTogether, say_farewell
from tests.support.in_memory_peers import InMemoryRendezvous
from tests.support.sync import StepDrive, SyncRun

LINK = ServerLink()


def array_of(groups: Sequence[tuple[str, int]], name: str = "fakes") -> ArrayConfig:
    """An array of such groups of drives."""
    devices = [{"profile": "newport", "count": count, "name": group} for group, count in groups]
    return ArrayConfig.model_validate({"name": name, "devices": devices})


class Hall:
    """Servers ``a``, ``b``... with so many drives each."""

    def __init__(
        self,
        drives: Sequence[int],
        make_drive: Callable[[str], StepDrive] = StepDrive,
        absent: Sequence[str] = (),
        own_fields: Mapping[str, Mapping[str, Any]] | None = None,
        reduce_every: int = 1,
        **fields: Any,
    ) -> None:
        """Make all servers but the `absent` ones; `own_fields` are those of single ones' runs."""
        self.own_fields: Mapping[str, Mapping[str, Any]] = own_fields or {}
        self.together: dict[str, ServersTogether] = {}
        groups = [(chr(ord("a") + number), count) for number, count in enumerate(drives)]
        self.order, self.whole = [name for name, _ in groups], array_of(groups)
        self.names = [device.name for device in self.whole.list_devices()]
        self.meeting, self._make_drive, self._fields = InMemoryRendezvous(self.order), make_drive, fields
        self._groups, self._reduce_every = dict(groups), reduce_every
        self.servers = {name: self.make(name) for name in self.order if name not in absent}

    def make(self, server: str) -> SyncRun:
        """A server that comes from now on."""
        own = array_of([(server, self._groups[server])], f"array-{server}")
        names = [name for name in self.names if name.startswith(f"{server}-")]
        turns = self.meeting.enter(server)

        def note(text: str) -> None:
            self.servers[server].on_event(HOST, EventKind.NOTE, text)

        self.together[server] = ServersTogether(server, turns, LINK, self._reduce_every, note)
        drives = [self._make_drive(name) for name in names]
        fields = self._fields | self.own_fields.get(server, {})
        return SyncRun(*drives, own=own, whole=self.whole, together=self.together[server], **fields)

    async def run(self) -> list[list[RoundRecord]]:
        """Have all servers that are there train to the end."""
        return await asyncio.gather(*(self.go(name) for name in self.servers))

    async def go(self, server: str) -> list[RoundRecord]:
        """Have one train to the end, after which it says farewell and leaves."""
        try:
            rounds = await self.servers[server].run()
            await say_farewell(self.together[server], self.servers[server].training)
            return rounds
        finally:
            self.meeting.leave(server)

    def come(self, server: str) -> asyncio.Task[list[RoundRecord]]:
        """Have a server that was absent, or lost, take part from now on, with new drives."""
        self.servers[server] = self.make(server)
        return asyncio.create_task(self.go(server))

    async def lose(self, server: str, task: asyncio.Task[list[RoundRecord]]) -> None:
        """Have a server end without a word, its drives with it."""
        self.meeting.leave(server)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
