"""Group of servers that have met: it takes turns by torch.distributed (gloo)."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.slices import Array
from host.training.multi_server.state_sync import Act, Position, Stage, next_actions
from host.training.multi_server.store.store_client import StoreClient
from host.training.multi_server.worker.worker_frames import (
    DOUBLE,
    LENGTH_BYTES,
    SINGLE,
    FromHost,
    FromWorker,
    GiveState,
    State,
    StateTurn,
    Taken,
    TakeState,
    encode,
    from_host,
    header_bytes,
    payload_bytes,
    split_sums,
)

# One turn of a group that is whole lasts as long as the slowest server computes; who is lost is found by its silence.
_TURN = timedelta(days=7)
_LOOK_SECONDS = 0.02


class GroupStore(Store):
    """Where gloo's workers leave their addresses for each other: a part of the servers' store, for one group."""

    def __init__(self, client: StoreClient, prefix: str) -> None:
        """Keep everything under `prefix`."""
        super().__init__()
        self._client, self._prefix = client, prefix

    def set(self, key: str, value: str | bytes) -> None:
        """Set a text."""
        self._client.set(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        """Return a text; waits until it is written."""
        while True:
            (text,) = self._client.read([self._prefix + key])
            if text is not None:
                return text
            time.sleep(_LOOK_SECONDS)

    def check(self, keys: list[str]) -> bool:
        """Return whether all are written."""
        return None not in self._client.read([self._prefix + key for key in keys])

    def wait(self, keys: list[str], *_: object) -> None:
        """Wait until all are written; who waits for one that is lost is ended (see `worker`)."""
        while not self.check(keys):
            time.sleep(_LOOK_SECONDS)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter."""
        return self._client.add(self._prefix + key, amount)


@dataclass(frozen=True)
class RankedServers:
    """The servers that have met, by rank: in the order of the servers file."""

    names: list[str]
    rank: int
    store: GroupStore

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return every server's numbers."""
        own = torch.tensor(numbers, dtype=torch.int64)
        all_ = [torch.empty_like(own) for _ in self.names]
        dist.all_gather(all_, own)
        return [each.tolist() for each in all_]

    def gather_bytes(self, content: bytes, sizes: Sequence[int]) -> list[bytes]:
        """Return every server's bytes, of these sizes."""
        own = torch.zeros(max(sizes), dtype=torch.uint8)
        if content:
            own[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        all_ = [torch.empty_like(own) for _ in self.names]
        dist.all_gather(all_, own)
        return [each.numpy()[:size].tobytes() for each, size in zip(all_, sizes, strict=True)]


class Worker:
    """Takes the turns that its host asks for."""

    def __init__(self, host: socket.socket, group: RankedServers) -> None:
        """Speak to the host over `host`; the group has met."""
        self._host, self._group = host, group
        self._stream = host.makefile("rb")

    def serve(self) -> NoReturn:
        """Take turns until the agent ends the process, as it does with its host.

        A worker that ended by itself, and well, would have the agent close the rendezvous, for the others too.
        """
        while True:
            frame, payload = self._receive()
            if not isinstance(frame, StateTurn):
                raise ProtocolError(f"the host said {type(frame).__name__} where a turn begins")
            while not self._take(frame, payload):
                pass

    def _take(self, turn: StateTurn, payload: Array) -> bool:
        """Take a turn, and return whether it is the host's own that was taken."""
        group = self._group
        seen = group.gather([turn.step, turn.turn, turn.stage, len(turn.meta), turn.singles, turn.doubles])
        doing = next_actions([Position(step, number, Stage(stage)) for step, number, stage, *_ in seen])
        if Act.GIVE in doing:
            return self._hand_over(doing)
        there = [rank for rank, act in enumerate(doing) if act is Act.PROCEED]
        metas = group.gather_bytes(turn.meta, [numbers[3] for numbers in seen])
        singles, doubles = seen[there[0]][4:]
        proceeds = doing[group.rank] is Act.PROCEED
        sums = split_sums(payload, singles) if proceeds else (np.zeros(singles, SINGLE), np.zeros(doubles, DOUBLE))
        for part in sums:
            if len(part):
                dist.all_reduce(torch.from_numpy(part))
        if proceeds:
            self._send(Taken({group.names[rank]: metas[rank] for rank in there}, singles, doubles), *sums)
        return proceeds

    def _hand_over(self, doing: Sequence[Act]) -> bool:
        """Bring those who are behind up to one who is further."""
        group, giver = self._group, doing.index(Act.GIVE)
        content: Array = np.empty(0, np.uint8)
        if giver == group.rank:
            self._send(GiveState())
            frame, content = self._receive()
            if not isinstance(frame, State):
                raise ProtocolError(f"the host was asked for its state and said {type(frame).__name__}")
        size = max(size for (size,) in group.gather([len(content)]))
        state = torch.from_numpy(content) if giver == group.rank else torch.empty(size, dtype=torch.uint8)
        dist.broadcast(state, giver)
        if doing[group.rank] is Act.TAKE:
            self._send(TakeState(group.names[giver], size), state.numpy())
            return True
        return False

    def _receive(self) -> tuple[FromHost, Array]:
        frame = from_host(bytes(self._read(header_bytes(bytes(self._read(LENGTH_BYTES))))))
        return frame, np.frombuffer(self._read(payload_bytes(frame)), np.uint8)

    def _read(self, size: int) -> bytearray:
        content = bytearray(size)
        if self._stream.readinto(content) < size:
            raise ConnectionError("the host has gone")
        return content

    def _send(self, frame: FromWorker, *payload: Array) -> None:
        self._host.sendall(encode(frame))
        for part in payload:
            self._host.sendall(np.ascontiguousarray(part).data)


def join_group(names: Sequence[str], server: str, client: StoreClient, prefix: str) -> RankedServers:
    """Connect to the other workers of a group, and return it: `names` are its servers, in the order of their file.

    A sum's last bits follow the order of its terms.
    """
    torch.set_num_threads(1)
    store, rank = GroupStore(client, prefix), list(names).index(server)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(names), timeout=_TURN)
    return RankedServers(list(names), rank, store)
