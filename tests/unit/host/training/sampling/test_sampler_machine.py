"""What a machine that counts steps does when its run ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from firmware_agent.common.errors import DeviceLost
from host.training.sampling.sampler_machine import SamplerMachine


class Session:
    """A session that stays."""

    closed = False


def machine(monkeypatch: pytest.MonkeyPatch) -> tuple[SamplerMachine, list[Session]]:
    """Return a machine whose start takes no time, and those that were started."""
    started: list[Session] = []

    async def start(self: SamplerMachine) -> Any:
        started.append(Session())
        return started[-1]

    monkeypatch.setattr(SamplerMachine, "_start", start)
    monkeypatch.setattr("host.training.sampling.sampler_machine.make_engine", lambda *_: Engine())
    nothing: Any = type("Request", (), {"config": None})()
    monkeypatch.setattr("host.training.sampling.sampler_machine._request_of", lambda *_: nothing)
    none: Any = None
    return SamplerMachine(none, 0, none, Engine(), lambda *_: None), started


class Engine:
    """Stands for an engine, and for what shows its progress."""

    def prepare(self, progress: object) -> None:
        """Do nothing."""

    def stage(self, name: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


def test_what_is_under_way_ends_before_the_machine_and_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, started = machine(monkeypatch)

    async def run() -> None:
        begun, ended = asyncio.Event(), False

        async def work(session: object) -> None:
            nonlocal ended
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended = True

        async with sampler:
            orphans = [asyncio.ensure_future(sampler.work(work)) for _ in range(2)]  # one of them waits for its turn
            await begun.wait()
        assert ended
        assert all(isinstance(each, asyncio.CancelledError) for each in await gather(orphans))
        with pytest.raises(DeviceLost, match="has ended with its run"):
            await sampler.work(work)

    async def gather(tasks: list[asyncio.Future[None]]) -> list[BaseException | None]:
        return await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
    assert len(started) == 1
