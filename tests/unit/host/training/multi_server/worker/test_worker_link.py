"""The host's end of the socket to its worker, against a worker that is told what to do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from firmware_agent.common.errors import DeviceLost
from firmware_agent.common.slices import Array
from host.core.states.peer_servers import StateBehind
from host.training.multi_server.state_sync import Position, Stage
from host.training.multi_server.worker.worker_frames import (
    LENGTH_BYTES,
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
)
from host.training.multi_server.worker.worker_link import TurnOutcome, WorkerLink, no_sums

HERE = Position(3, 8, Stage.REDUCE)
SUMS = np.arange(3, dtype=np.float32), np.arange(2, dtype=np.float64) / 3


class Worker:
    """The other end: reads what the host says, and says what a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, path: Path) -> Worker:
        return cls(*await asyncio.open_unix_connection(path))

    async def hear(self) -> tuple[FromHost, bytes]:
        frame = from_host(await self.reader.readexactly(header_bytes(await self.reader.readexactly(LENGTH_BYTES))))
        return frame, await self.reader.readexactly(payload_bytes(frame))

    async def say(self, frame: FromWorker, *payload: Array) -> None:
        self.writer.write(encode(frame) + b"".join(part.tobytes() for part in payload))
        await self.writer.drain()

    async def die(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def refuse() -> bytes:
    raise AssertionError("nobody asked for the state")


@pytest.fixture
async def link(tmp_path: Path) -> AsyncIterator[WorkerLink]:
    async with WorkerLink(tmp_path / "deep" / "worker", 60.0) as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "worker"


def ask(link: WorkerLink, give: Callable[[], bytes] = refuse) -> asyncio.Task[TurnOutcome]:
    return asyncio.create_task(link.turn(HERE, b"mine", SUMS, give))


def assert_is_turn(heard: tuple[FromHost, bytes]) -> None:
    assert heard == (StateTurn(3, 8, 1, b"mine", 3, 2), SUMS[0].tobytes() + SUMS[1].tobytes())


async def test_a_turn_goes_out_and_its_outcome_comes_back(link: WorkerLink, path: Path) -> None:
    turn, worker = ask(link), await Worker.dial(path)
    assert_is_turn(await worker.hear())
    await worker.say(Taken({"b": b"theirs", "a": b"mine"}, 3, 2), 2 * SUMS[0], 2 * SUMS[1])
    outcome = await turn
    assert list(outcome.metas.items()) == [("b", b"theirs"), ("a", b"mine")]
    np.testing.assert_array_equal(outcome.singles, 2 * SUMS[0])
    np.testing.assert_array_equal(outcome.doubles, 2 * SUMS[1])
    assert outcome.sent_again == 0
    await worker.die()


@pytest.mark.usefixtures("link")
def test_nobody_else_may_connect(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_turn_is_sent_to_the_next_worker_when_one_dies_in_it(link: WorkerLink, path: Path) -> None:
    turn = ask(link)
    for times in range(3):
        worker = await Worker.dial(path)
        assert_is_turn(await worker.hear())
        if times == 1:  # in the middle of an outcome
            worker.writer.write(encode(Taken({"a": b""}, 3, 2)) + b"123")
            await worker.writer.drain()
        await worker.die()
    last = await Worker.dial(path)
    assert_is_turn(await last.hear())
    assert not turn.done()
    await last.say(Taken({"a": b"mine"}, 3, 2), *SUMS)
    assert (await turn).sent_again == 3
    await last.die()


async def test_a_worker_that_comes_while_the_earlier_one_is_still_there_takes_its_place(
    link: WorkerLink, path: Path
) -> None:
    turn, first = ask(link), await Worker.dial(path)
    assert_is_turn(await first.hear())
    second = await Worker.dial(path)
    assert_is_turn(await second.hear())
    assert await first.reader.read() == b""
    await second.say(Taken({"a": b"mine"}, 3, 2), *SUMS)
    assert (await turn).sent_again == 1
    await first.die()
    await second.die()


async def test_a_worker_that_says_rubbish_is_dropped(link: WorkerLink, path: Path) -> None:
    turn, worker = ask(link), await Worker.dial(path)
    await worker.hear()
    worker.writer.write((3).to_bytes(LENGTH_BYTES, "little") + b"???")
    await worker.writer.drain()
    assert await worker.reader.read() == b""
    await worker.die()
    other = await Worker.dial(path)
    assert_is_turn(await other.hear())
    await other.say(Taken({}))
    assert len((await turn).singles) == 0
    await other.die()


async def test_the_state_is_given_from_a_thread_and_the_turn_goes_on(link: WorkerLink, path: Path) -> None:
    where: list[threading.Thread] = []

    def give() -> bytes:
        where.append(threading.current_thread())
        return b"state" * 1000

    turn, worker = ask(link, give), await Worker.dial(path)
    await worker.hear()
    for _ in range(2):
        await worker.say(GiveState())
        assert await worker.hear() == (State(5000), b"state" * 1000)
    await worker.say(Taken({"a": b"mine"}))
    assert (await turn).metas == {"a": b"mine"}
    assert threading.main_thread() not in where
    await worker.die()


async def test_who_is_behind_gets_the_others_state(link: WorkerLink, path: Path) -> None:
    turn, worker = ask(link), await Worker.dial(path)
    await worker.hear()
    await worker.say(TakeState("b", 6), np.frombuffer(b"theirs", np.uint8))
    with pytest.raises(StateBehind, match="server b") as ahead:
        await turn
    assert (ahead.value.server, ahead.value.state) == ("b", b"theirs")
    again = ask(link)  # to the same worker
    assert_is_turn(await worker.hear())
    await worker.say(Taken({}))
    assert (await again).sent_again == 0
    await worker.die()


async def test_patience_runs_out(tmp_path: Path) -> None:
    async with WorkerLink(tmp_path / "worker", 0.0) as link:
        with pytest.raises(DeviceLost, match=r"step 3: for 0 s too few servers .*membership\.min.*servers\.log"):
            await ask(link)


async def test_workers_that_end_one_after_the_other_are_not_waited_for_without_end(tmp_path: Path) -> None:
    """Many may end in a turn, for servers come and go; when patience is over too, something else is wrong."""
    path, clock = tmp_path / "worker", [0.0]

    async def die() -> None:
        worker = await Worker.dial(path)
        assert_is_turn(await worker.hear())
        worker.writer.write_eof()
        assert await worker.reader.read() == b""  # it was noticed
        await worker.die()

    async with WorkerLink(path, 60.0, lambda: clock[0]) as link:
        turn = ask(link)
        for _ in range(20):
            await die()
        assert not turn.done()
        clock[0] = 61.0
        await die()
        with pytest.raises(DeviceLost, match=r"step 3: 21 workers have ended in this turn.*servers\.log"):
            await turn


async def test_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "worker"
    path.write_text("what a killed run left")
    async with WorkerLink(path, 60.0) as link:
        turn, worker = ask(link), await Worker.dial(path)
        await worker.hear()
        await worker.say(Taken({}))
        await turn
    assert await worker.reader.read() == b""
    assert not path.exists()
    await worker.die()


async def test_a_turn_without_sums(link: WorkerLink, path: Path) -> None:
    turn = asyncio.create_task(link.turn(Position(1, 0, Stage.BEGIN), b"", no_sums(), refuse))
    worker = await Worker.dial(path)
    assert await worker.hear() == (StateTurn(1, 0, 0), b"")
    await worker.say(Taken({}))
    outcome = await turn
    assert (len(outcome.singles), len(outcome.doubles)) == (0, 0)
    await worker.die()
