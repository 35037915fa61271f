"""The fleet's decisions, over fake calls; tests/integration/test_fleet.py has them over gRPC and TLS."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from firmware_agent.common.frames.session_frames import Ready, Welcome
from firmware_agent.common.wire import PROTOCOL_VERSION
from host.core.records import EventKind
from host.fleet import fleet as fleet_module
from host.fleet.admission import ExpectedDevice
from host.fleet.certificates import HostKeys
from host.fleet.fleet import Fleet
from tests.support.fakes import Aborted, FakeCall, hello


class Calls:
    """A fleet and the calls that were made to it; what still runs at the end is cancelled."""

    def __init__(self, keys: HostKeys) -> None:
        self.events: list[tuple[str, EventKind, str]] = []
        expected = {"csd-00": ExpectedDevice(1, "a" * 64), "csd-01": ExpectedDevice(1, "b" * 64)}
        self.fleet = Fleet(expected, keys, 0, lambda *event: self.events.append(event))
        self._tasks: list[asyncio.Task[None]] = []

    def make(self, call: FakeCall) -> asyncio.Task[None]:
        self._tasks.append(asyncio.ensure_future(self.fleet._serve(None, cast(Any, call))))
        return self._tasks[-1]

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError, Aborted):
                await task


@pytest.fixture
async def calls(host_keys: HostKeys) -> AsyncIterator[Calls]:
    calls = Calls(host_keys)
    yield calls
    await calls.end()


async def refusal(calls: Calls, call: FakeCall) -> str:
    with pytest.raises(Aborted):
        await calls.make(call)
    assert call.written == []
    return call.refusal


async def test_a_device_that_shows_what_was_expected_is_welcome(calls: Calls) -> None:
    call = FakeCall("csd-00", hello())
    calls.make(call)
    await calls.fleet.joined("csd-00")
    await calls.settle()
    assert call.written == [Welcome()]
    assert list(calls.fleet.sessions()) == ["csd-00"]
    assert calls.fleet.session("csd-01") is None
    assert calls.events == [("csd-00", EventKind.JOINED, "")]


@pytest.mark.parametrize(
    ("name", "message", "why"),
    [
        ("", hello(), "not a device of this array"),
        ("csd-09", hello("csd-09"), "csd-09 is not a device of this array"),
        ("csd-01", hello("csd-00"), "csd-01's certificate came with a hello of csd-00"),
        ("csd-00", hello(manifest="c" * 64), "holds another shard"),
        ("csd-00", hello(incarnation=0), "incarnation 0 is stale, 1 has joined"),
        ("csd-00", Ready(5), "did not begin with a hello"),
        ("csd-00", b"\xc1\xc1\xc1", "malformed frame"),
        ("csd-00", b"", "malformed frame"),
    ],
)
async def test_anyone_else_is_refused_with_the_reason(calls: Calls, name: str, message: Any, why: str) -> None:
    assert why in await refusal(calls, FakeCall(name, message))
    assert calls.fleet.sessions() == {}
    assert [what == EventKind.REFUSED for _, what, _ in calls.events] == [True]


async def test_another_protocol_is_refused_with_the_remedy(calls: Calls) -> None:
    import msgspec

    strange = msgspec.structs.replace(hello(), protocol=PROTOCOL_VERSION + 1)
    expected = f"speaks protocol {PROTOCOL_VERSION + 1}, this host {PROTOCOL_VERSION}: upgrade it"
    assert expected in await refusal(calls, FakeCall("csd-00", strange))


async def test_one_who_says_nothing_is_refused(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "_HELLO_SECONDS", 0.01)
    assert "csd-00 said nothing" in await refusal(calls, FakeCall("csd-00"))


async def test_a_newer_incarnation_fences_the_older_off_for_good(calls: Calls) -> None:
    old, new = FakeCall("csd-00", hello(incarnation=1)), FakeCall("csd-00", hello(incarnation=2))
    first = calls.make(old)
    await calls.settle()
    second = calls.make(new)
    with pytest.raises(Aborted, match="newer incarnation"):
        await first
    session = calls.fleet.session("csd-00")
    assert session is not None
    assert session.hello.incarnation == 2
    assert "stale" in await refusal(calls, FakeCall("csd-00", hello(incarnation=1)))
    assert calls.fleet.session("csd-00") is session
    second.cancel()
    await calls.settle()
    assert calls.fleet.session("csd-00") is None
    assert "stale" in await refusal(calls, FakeCall("csd-00", hello(incarnation=1)))


async def test_an_older_incarnation_whose_welcome_is_under_way_does_not_fence_off_the_newer(calls: Calls) -> None:
    """Both hellos are checked before either is registered: the twin that is slow to be welcomed must not win."""
    old, new = FakeCall("csd-00", hello(incarnation=1)), FakeCall("csd-00", hello(incarnation=2))
    old.may_write.clear()
    calls.make(old)
    await calls.settle()
    calls.make(new)
    await calls.settle()
    old.may_write.set()
    await calls.settle()
    session = calls.fleet.session("csd-00")
    assert session is not None
    assert session.hello.incarnation == 2
    assert "stale" in await refusal(calls, FakeCall("csd-00", hello(incarnation=1)))


async def test_a_redial_of_the_same_incarnation_replaces_the_session(calls: Calls) -> None:
    first = calls.make(FakeCall("csd-00", hello()))
    await calls.settle()
    before = calls.fleet.session("csd-00")
    calls.make(FakeCall("csd-00", hello()))
    await first  # ended without a refusal: the agent may dial again
    after = calls.fleet.session("csd-00")
    assert before is not None
    assert after is not before
    assert before.closed
    assert after is not None
    assert not after.closed


async def test_sessions_come_in_the_arrays_order(calls: Calls) -> None:
    calls.make(FakeCall("csd-01", hello("csd-01", manifest="b" * 64)))
    await calls.settle()
    calls.make(FakeCall("csd-00", hello()))
    await calls.settle()
    assert list(calls.fleet.sessions()) == ["csd-00", "csd-01"]


async def test_a_twin_of_the_same_incarnation_is_refused_and_the_first_may_redial(calls: Calls) -> None:
    first, twin = hello(instance="1" * 16), hello(instance="2" * 16)
    calls.make(FakeCall("csd-00", first))
    await calls.settle()
    session = calls.fleet.session("csd-00")
    assert "an agent of incarnation 1 has joined before this one" in await refusal(calls, FakeCall("csd-00", twin))
    assert calls.fleet.session("csd-00") is session
    redialled = calls.make(FakeCall("csd-00", first))
    await calls.settle()
    assert calls.fleet.session("csd-00") not in (None, session)
    redialled.cancel()
    await calls.settle()
    assert "has joined before" in await refusal(calls, FakeCall("csd-00", twin))  # also while the first is away
    calls.make(FakeCall("csd-00", hello(incarnation=2, instance="2" * 16)))
    await calls.settle()
    assert calls.fleet.session("csd-00") is not None
    assert "is stale" in await refusal(calls, FakeCall("csd-00", first))


async def test_a_device_that_is_cut_off_loses_its_session_and_dials_in_vain_until_it_is_healed(calls: Calls) -> None:
    held = calls.make(FakeCall("csd-00", hello()))
    await calls.settle()
    session = calls.fleet.session("csd-00")
    calls.fleet.cut("csd-00")
    await held  # ended without a refusal: the agent may dial again
    assert session is not None
    assert session.closed
    assert calls.fleet.session("csd-00") is None
    for _ in range(2):
        assert await refusal(calls, FakeCall("csd-00", hello())) == "csd-00 is cut off"
    calls.make(FakeCall("csd-01", hello("csd-01", manifest="b" * 64)))
    calls.fleet.heal("csd-00")
    calls.make(FakeCall("csd-00", hello()))
    await calls.settle()
    assert list(calls.fleet.sessions()) == ["csd-00", "csd-01"]
    assert [what for device, what, _ in calls.events if device == "csd-00"] == [
        EventKind.JOINED,
        EventKind.LEFT,
        EventKind.REJOINED,
    ]


async def test_a_device_that_is_cut_off_while_it_is_welcomed_gets_no_session(calls: Calls) -> None:
    call = FakeCall("csd-00", hello())
    call.may_write.clear()
    served = calls.make(call)
    await calls.settle()
    calls.fleet.cut("csd-00")
    call.may_write.set()
    await served
    assert calls.fleet.session("csd-00") is None


async def test_a_device_that_was_never_there_can_be_cut_off_and_healed(calls: Calls) -> None:
    calls.fleet.heal("csd-00")
    calls.fleet.cut("csd-00")
    calls.fleet.cut("csd-00")
    calls.fleet.heal("csd-00")
    calls.make(FakeCall("csd-00", hello()))
    await calls.settle()
    assert calls.fleet.session("csd-00") is not None


async def test_a_clock_or_a_number_of_records_that_the_drive_was_not_given_is_refused(host_keys: HostKeys) -> None:
    calls = Calls(host_keys)
    calls.fleet._rules._expected["csd-00"] = ExpectedDevice(1, "a" * 64, samples=10, clock="wall")
    calls.fleet._rules._expected["csd-01"] = ExpectedDevice(1, "a" * 64)
    assert "its clock is wall" in await refusal(calls, FakeCall("csd-00", hello(clock="counted")))
    assert "its clock is one of counted, modelled, wall" in await refusal(
        calls, FakeCall("csd-01", hello("csd-01", clock="[link=x]mine"))
    )
    assert "was dealt 10" in await refusal(calls, FakeCall("csd-00", hello(samples=2**53)))
    assert "can have 4294967296" in await refusal(calls, FakeCall("csd-01", hello("csd-01", samples=2**53)))
    for device in ("csd-00", "csd-01"):
        calls.make(FakeCall(device, hello(device)))
        await calls.fleet.joined(device)
    # What it said first of records in place holds from then on.
    assert "was dealt 10" in await refusal(calls, FakeCall("csd-01", hello("csd-01", samples=11)))
    await calls.end()
