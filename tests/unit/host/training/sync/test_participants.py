"""Who takes part in the next step: time is a stand-in's, so that nothing here waits."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, cast

import pytest

from firmware_agent.common.errors import DeviceCodeFailed, DeviceFailed, DeviceLost
from host.core.failures import Failures
from host.core.records import EventKind
from host.fleet.fleet import Fleet
from host.training.sync import participants as module
from host.training.sync.participants import Participants
from tests.support.fakes import FakeDrive, FakeFleet

NODES = ["csd-00", "csd-01", "host"]


class Waiting:
    """Participants of a fake fleet; looks for devices are counted, and never wait."""

    def __init__(self, *names: str, existing: Collection[str] = (), watchdog_seconds: float = 30.0) -> None:
        self.fleet = FakeFleet(*(FakeDrive(name) for name in names))
        self.existing = set(existing)
        self.looks = 0
        self.after_look: dict[int, Callable[[], None]] = {}
        self._loop = asyncio.get_running_loop()
        self.told: list[tuple[str, EventKind, str]] = []
        self.participants = Participants(
            *(NODES, cast(Fleet, self.fleet), self.look, watchdog_seconds),
            lambda device, what, detail: self.told.append((device, what, detail)),
        )

    def look(self) -> Collection[str]:
        self.looks += 1
        if (then := self.after_look.get(self.looks)) is not None:
            self._loop.call_soon_threadsafe(then)
        return set(self.existing)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)


async def test_those_with_a_session_take_part_in_the_arrays_order() -> None:
    run = Waiting("host", "csd-01", "stranger")
    assert list(await run.participants.present(1)) == ["csd-01", "host"]
    assert (run.looks, run.told) == (0, [])


async def test_nobody_that_exists_is_an_error_at_once() -> None:
    run = Waiting()
    with pytest.raises(DeviceLost, match=r"step 7: no device is left; csd-emu status shows"):
        await run.participants.present(7)
    assert (run.looks, run.told) == (1, [])


async def test_what_exists_is_waited_for_until_the_watchdogs_end() -> None:
    run = Waiting(existing=["csd-01", "csd-00"], watchdog_seconds=0.0)
    run.participants.took_part([], {"csd-00": DeviceLost("csd-00: silent")})
    with pytest.raises(DeviceLost, match=r"no device is left \(csd-00: silent\)"):
        await run.participants.present(3)
    assert run.told == [("host", EventKind.NOTE, "step 3: waits up to 0 s for csd-00, csd-01")]


async def test_what_goes_while_it_is_waited_for_ends_the_wait() -> None:
    run = Waiting(existing=["csd-01"])
    run.after_look[3] = run.existing.clear
    with pytest.raises(DeviceLost, match="no device is left"):
        await run.participants.present(3)
    assert len(run.told) == 1  # said once, however often it looked


async def test_a_device_that_dials_in_ends_the_wait() -> None:
    run = Waiting(existing=["csd-01"])
    run.after_look[2] = lambda: run.fleet.join(FakeDrive("csd-01"))
    assert list(await run.participants.present(3)) == ["csd-01"]


async def test_three_failures_in_a_row_leave_a_device_out_for_good_and_losses_do_not() -> None:
    run = Waiting("csd-00", "csd-01", existing=["csd-00", "csd-01"])
    failed, lost = DeviceFailed("no memory"), DeviceLost("gone")
    for error in (failed, failed):
        run.participants.took_part(["csd-00"], {"csd-01": error})
    run.participants.took_part(["csd-00", "csd-01"], {})
    for error in (failed, failed, lost, lost, lost):  # type: ignore[assignment]
        run.participants.took_part(["csd-00"], {"csd-01": error})
    assert list(await run.participants.present(9)) == ["csd-00", "csd-01"]
    run.participants.took_part(["csd-00"], {"csd-01": failed})
    assert list(await run.participants.present(9)) == ["csd-00"]
    assert run.told == [("csd-01", EventKind.NOTE, "left out from now on: its task failed 3 times in a row")]
    run.fleet.join(FakeDrive("csd-01"))  # dialling again is no way back
    assert list(await run.participants.present(10)) == ["csd-00"]


async def test_once_all_are_left_out_the_last_failure_is_the_runs() -> None:
    run = Waiting("csd-00", existing=["csd-00"])
    for _ in range(3):
        run.participants.took_part([], {"csd-00": DeviceFailed("csd-00: no memory")})
    with pytest.raises(DeviceFailed, match="no memory"):
        await run.participants.present(4)


def test_the_users_failure_ends_the_run_when_the_step_is_over() -> None:
    failures = Failures(goes_on=False)
    participants = Participants([], cast(Any, None), list, 1.0, lambda *_: None, failures)
    participants.took_part([], {"csd-00": DeviceFailed("no memory")})
    error = DeviceCodeFailed("csd-00: Step failed", "model", "RuntimeError: my bug")
    failures.take(error, "csd-00", 4)
    with pytest.raises(DeviceCodeFailed) as found:
        participants.took_part([], {"csd-00": error})
    assert found.value is error
