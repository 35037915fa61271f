"""The list of exporters that the store's keeper writes: who comes is in it, who was lost long ago is not."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from csd_emu.config.servers_file import ServersConfig
from host.training.multi_server.membership import Claim, exporter_key
from host.training.multi_server.prometheus_targets import KEPT_SECONDS, keep_targets
from host.training.multi_server.rendezvous import beat_key
from tests.support.book import KEY, Book

NAMES = ("a", "b")
CONFIG = ServersConfig.model_validate({"name": "hall", "servers": [{"name": name, "array": "x"} for name in NAMES]})


class Keeper:
    """A list that is kept, and a clock that stands still but for `wait`."""

    def __init__(self, path: Path) -> None:
        self.book, self.path, self.now = Book(), path, 0.0
        self.told: list[str] = []
        self._looked = asyncio.Event()

    def begin_run(self, run: str) -> None:
        self.book.texts[KEY] = msgspec.json.encode(Claim("v", "s", "j", run)).decode()

    def beat(self, run: str, *servers: str) -> None:
        for number, server in enumerate(servers):
            self.book.texts[exporter_key("hall", server)] = f"127.0.0.{number + 1}:9000"
            self.book.add(beat_key(run, f"host/{server}"), 1)

    def clock(self) -> float:
        self._looked.set()
        return self.now

    async def look(self, seconds: float = 0.0) -> list[str]:
        """Let so much time pass, and return who is in the list after it."""
        self.now += seconds
        for _ in range(3):  # the first may have listened before, the third has written what the second heard
            self._looked.clear()
            await self._looked.wait()
        return [each["labels"]["server"] for each in json.loads(self.path.read_text())]


@pytest.fixture
async def keeper(tmp_path: Path) -> AsyncIterator[Keeper]:
    made = Keeper(tmp_path / "targets" / "hall.json")
    task = asyncio.create_task(keep_targets(made.book, CONFIG, made.path, made.told.append, made.clock, 0.0))
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_server_that_was_lost_is_told_for_a_while_and_comes_back(keeper: Keeper) -> None:
    assert await keeper.look() == []
    keeper.begin_run("r1")
    keeper.beat("r1", "a", "b")
    assert await keeper.look() == ["a", "b"]
    keeper.beat("r1", "a")
    assert await keeper.look(KEPT_SECONDS) == ["a", "b"]
    keeper.beat("r1", "a")
    assert await keeper.look(1.0) == ["a"]
    keeper.beat("r1", "a", "b")
    assert await keeper.look(1.0) == ["a", "b"]


async def test_nobody_is_left_in_the_list_long_after_a_run(keeper: Keeper) -> None:
    keeper.begin_run("r1")
    keeper.beat("r1", "a", "b")
    assert await keeper.look() == ["a", "b"]
    keeper.book.texts[KEY] = ""
    assert await keeper.look(1.0) == ["a", "b"]
    assert await keeper.look(KEPT_SECONDS + 1.0) == []
    keeper.begin_run("r2")
    keeper.beat("r2", "b")
    assert await keeper.look(1.0) == ["b"]


async def test_a_list_that_cannot_be_is_told_once_and_the_store_goes_on(keeper: Keeper) -> None:
    keeper.begin_run("r1")
    keeper.beat("r1", "a", "b")
    keeper.book.texts[exporter_key("hall", "b")] = keeper.book.texts[exporter_key("hall", "a")]
    assert await keeper.look() == []
    assert await keeper.look(1.0) == []
    assert ["both export on 127.0.0.1:9000" in text for text in keeper.told] == [True]
    keeper.beat("r1", "a", "b")
    assert await keeper.look(1.0) == ["a", "b"]
