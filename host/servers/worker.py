"""The worker beside a server's host: takes turns with the workers of other servers, by torch.distributed (gloo).

`csd-emu run --servers` starts it under torchrun's elastic agent. When a server is lost or joins, the agents end all
workers and start new ones, which meet anew; hosts and their drives see nothing of that but a turn that takes longer. A
worker keeps nothing: what a turn needs comes from its host each time.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from firmware_agent.errors import ProtocolError
from firmware_agent.exchange import Array
from host.servers.beats import watch_others
from host.servers.frames import (
    DOUBLE,
    LENGTH_BYTES,
    SINGLE,
    FromHost,
    FromWorker,
    GiveState,
    State,
    Taken,
    TakeState,
    Turn,
    encode,
    from_host,
    header_bytes,
    payload_bytes,
    split_sums,
)
from host.servers.store import serve_store
from host.servers.turns import Act, Position, Stage, acts
from host.servers.worker_arguments import Arguments

# One turn of a group that is whole lasts as long as the slowest server computes; who is lost is found by its silence.
_TURN = timedelta(days=7)
_MEET = timedelta(minutes=2)


@dataclass(frozen=True)
class Group:
    """The servers that have met, by rank: in the order of the servers file."""

    names: list[str]
    rank: int

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

    def __init__(self, host: socket.socket, group: Group) -> None:
        """Speak to the host over `host`; the group has met."""
        self._host, self._group = host, group

    def serve(self) -> NoReturn:
        """Take turns until the agent ends the process, as it does with its host.

        A worker that ended by itself, and well, would have the agent close the rendezvous, for the others too.
        """
        while True:
            frame, payload = self._receive()
            if not isinstance(frame, Turn):
                raise ProtocolError(f"the host said {type(frame).__name__} where a turn begins")
            while not self._take(frame, payload):
                pass

    def _take(self, turn: Turn, payload: Array) -> bool:
        """Take a turn, and return whether it is the host's own that was taken."""
        group = self._group
        seen = group.gather([turn.step, turn.turn, turn.stage, len(turn.meta), turn.singles, turn.doubles])
        positions = [Position(step, number, Stage(stage)) for step, number, stage, *_ in seen]
        doing = acts(positions)
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
            told = {group.names[rank]: metas[rank] for rank in there}
            self._send(Taken(told, singles, doubles), *sums)
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
        view = memoryview(content)
        while view:
            count = self._host.recv_into(view)
            if not count:
                raise ConnectionError("the host has gone")
            view = view[count:]
        return content

    def _send(self, frame: FromWorker, *payload: Array) -> None:
        self._host.sendall(encode(frame))
        for part in payload:
            self._host.sendall(np.ascontiguousarray(part).data)


def meet(server: str, order: Sequence[str], patience: timedelta = _MEET) -> Group:
    """Meet the other workers that the agents have started, and return the group; ranks follow the servers file.

    The agents number workers as they come, and a sum's last bits follow the order of its terms.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # New for each meeting, so nothing of an earlier one is in it.
    meeting = serve_store(*place, patience) if rank == 0 else TCPStore(*place, timeout=patience)
    meeting.set(f"name/{rank}", server)
    names = sorted((meeting.get(f"name/{each}").decode() for each in range(world)), key=list(order).index)
    if len(set(names)) < world:
        raise RuntimeError(f"two servers have one name: {', '.join(names)}")
    own = names.index(server)
    dist.init_process_group("gloo", store=meeting, rank=own, world_size=world, timeout=_TURN)
    return Group(names, own)


def main() -> None:
    """Meet the others, connect to the host, serve it; any error ends the process, and the agents start anew."""
    parser = argparse.ArgumentParser(description="worker of csd-emu run --servers")
    parser.add_argument("arguments")
    arguments = msgspec.json.decode(parser.parse_args().arguments, type=Arguments)
    torch.set_num_threads(1)
    ends = threading.Event()
    threading.Thread(target=_end_when, args=(ends, os.getppid()), daemon=True).start()
    patience = threading.Timer(_MEET.total_seconds(), ends.set)  # gloo would wait as long as for a turn
    patience.daemon = True
    patience.start()
    group = meet(arguments.server, arguments.servers)
    store = TCPStore(*arguments.store, timeout=timedelta(seconds=arguments.silence_seconds))
    watch_others(store, arguments.run, group.names, group.rank, arguments.silence_seconds, ends)
    patience.cancel()
    # The host takes a worker that comes for one that has met the others.
    host = socket.socket(socket.AF_UNIX)
    host.connect(arguments.host)
    Worker(host, group).serve()


def _end_when(ends: threading.Event, agent: int) -> None:
    """End the process when `ends` is set, or the agent has gone: nothing else ends a collective."""
    while not ends.wait(1.0) and os.getppid() == agent:
        pass
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
