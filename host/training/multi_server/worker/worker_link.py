"""The host's end of the socket to its worker: turns go out, and are sent anew to the next worker when one is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from csd_emu.util.deadline import Deadline
from firmware_agent.common.atomic_files import make_folder
from firmware_agent.common.errors import DeviceLost, ProtocolError
from firmware_agent.common.slices import Array
from host.core.states.peer_servers import StateBehind
from host.training.multi_server.state_sync import Position
from host.training.multi_server.worker.worker_frames import (
    LENGTH_BYTES,
    FromHost,
    FromWorker,
    GiveState,
    State,
    StateTurn,
    TakeState,
    encode,
    from_worker,
    header_bytes,
    payload_bytes,
    split_sums,
)

_BROKEN = (OSError, EOFError, ProtocolError)
# Workers that may end in one turn whatever time it takes, because servers come and go; more only within the time limit.
_MOST_LOST = 10


@dataclass(frozen=True)
class TurnOutcome:
    """What came of a turn.

    Attributes:
        metas: server -> what it said, of those who took part, in the order of the servers file.
        singles, doubles: the sums over these, float32 and float64.
        sent_again: how often it was sent anew, for the servers had to meet again.
    """

    metas: Mapping[str, bytes]
    singles: Array
    doubles: Array
    sent_again: int = 0


class WorkerLink:
    """Listens for the worker, one at a time; an async context manager."""

    def __init__(self, path: Path, patience_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """Prepare to listen.

        Args:
            path: of the Unix socket; one that a killed run left is replaced.
            patience_seconds: for so long a turn waits for a worker, which comes when enough servers have met.
            now: seconds of a clock.
        """
        self._path, self._new_deadline = path, partial(Deadline, patience_seconds, now)
        self._server: asyncio.Server | None = None
        self._come = asyncio.Condition()
        self._worker: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> WorkerLink:
        make_folder(self._path.parent, 0o711)
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._connected, self._path)
        self._path.chmod(0o600)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._worker is not None:
            self._drop(self._worker)
        if self._server is not None:
            self._server.close()
        self._path.unlink(missing_ok=True)

    async def turn(
        self, position: Position, meta: bytes, sums: tuple[Array, Array], give_state: Callable[[], bytes]
    ) -> TurnOutcome:
        """Take a turn with all other servers; however often they have to meet anew, it is taken once.

        Args:
            position: where this server stands.
            meta: what it says to the others.
            sums: its float32 and float64 vectors; every server's have the same lengths.
            give_state: returns the training's state, for those who are behind.

        Raises:
            CaughtUp: another server is further, and this turn is void.
            DeviceLost: too few servers have met for too long, or one worker after the other has ended.
        """
        turn = StateTurn(position.step, position.turn, int(position.stage), meta, *(len(part) for part in sums))
        again, deadline = 0, self._new_deadline()
        while True:
            worker = await self._present(position)
            try:
                await _send(worker[1], turn, *sums)
                return await self._answer(worker, give_state, again)
            except _BROKEN:
                self._drop(worker)
                again += 1
            if again > _MOST_LOST and deadline.expired:
                raise DeviceLost(
                    f"step {position.step}: {again} workers have ended in this turn, one after the other, and none "
                    "took it to its end; servers.log in the run directory has what they said last"
                )

    async def _answer(
        self, worker: tuple[asyncio.StreamReader, asyncio.StreamWriter], give_state: Callable[[], bytes], again: int
    ) -> TurnOutcome:
        while True:
            frame, payload = await _receive(worker[0])
            if isinstance(frame, GiveState):
                state = np.frombuffer(await asyncio.to_thread(give_state), np.uint8)
                await _send(worker[1], State(len(state)), state)
            elif isinstance(frame, TakeState):
                raise StateBehind(frame.server, payload.tobytes())
            else:
                return TurnOutcome(frame.metas, *split_sums(payload, frame.singles), again)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._come:
            if self._worker is not None:  # of an earlier meeting: it ends when it notices
                self._worker[1].close()
            self._worker = (reader, writer)
            self._come.notify_all()

    async def _present(self, position: Position) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = self._new_deadline()
        async with self._come:
            while self._worker is None:
                try:
                    await asyncio.wait_for(self._come.wait(), deadline.left_seconds)
                except TimeoutError:
                    raise DeviceLost(
                        f"step {position.step}: for {deadline.seconds:.0f} s too few servers were there to go on "
                        "(membership.min), or their workers did not meet; start csd-emu run --servers on the others, "
                        "and see servers.log in the run directory"
                    ) from None
            return self._worker

    def _drop(self, worker: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        worker[1].close()
        if self._worker is worker:
            self._worker = None


async def _send(writer: asyncio.StreamWriter, frame: FromHost, *payload: Array) -> None:
    writer.write(encode(frame))
    for part in payload:
        if len(part):
            writer.write(np.ascontiguousarray(part).data.cast("B"))
        await writer.drain()
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> tuple[FromWorker, Array]:
    frame = from_worker(await reader.readexactly(header_bytes(await reader.readexactly(LENGTH_BYTES))))
    return frame, np.frombuffer(bytearray(await reader.readexactly(payload_bytes(frame))), np.uint8)


def no_sums() -> tuple[Array, Array]:
    """Return the sums of a turn that adds nothing up."""
    return np.empty(0, np.float32), np.empty(0, np.float64)
