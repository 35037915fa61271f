"""What a run does to its devices on request: at once, or when the device is given its next task."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from csd_emu.engines import Fault
from csd_emu.profiles import get_profile
from csd_emu.profiles.profile import End
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import ConfigurationError, DeviceFailed, DeviceLost, ProtocolError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Disturb, Disturbed, Failed, Ready, Sabotage, Sabotaged
from firmware_agent.common.wire import AnyFrame
from host.core.device_time import DeviceTime
from host.core.records import EventKind
from host.fleet.control_socket import ControlRequest
from host.fleet.fleet import Fleet
from host.training.run_faults import RunFaults
from tests.support.fakes import Answer, Cut, FakeDrive, FakeFleet


class Obedient(FakeDrive):
    """A drive that does what faults ask of its agent."""

    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        if isinstance(frame, Disturb):
            yield Disturbed(frame.weight)
        elif isinstance(frame, Sabotage):
            yield Sabotaged(4096 if frame.harm == "fill" else 0)
        else:
            yield from super().answer(frame)


class Fleets(FakeFleet):
    """Also remembers who was cut off."""

    def __init__(self, *drives: FakeDrive) -> None:
        super().__init__(*drives)
        self.cut_off: set[str] = set()

    def session(self, device: str) -> Any:
        return self.sessions().get(device)

    def cut(self, device: str) -> None:
        self.cut_off.add(device)

    def heal(self, device: str) -> None:
        self.cut_off.discard(device)


class Flat:
    """A model of one second per step."""

    encode_seconds = 0.0

    def step_seconds(self, batch_size: int) -> PhaseSeconds:
        return PhaseSeconds(forward=1.0)

    def at(self, _: End) -> "Flat":
        return self


class Lab:
    """Faults of a run on fake drives, and what they recorded."""

    def __init__(self, *drives: FakeDrive, modelled: bool = False) -> None:
        self.events: list[tuple[str, EventKind, str]] = []
        self.fleet = Fleets(*drives)
        names = [drive.device for drive in drives] + ["csd-09"]
        models = {name: Flat() for name in names} if modelled else {}
        self.time = DeviceTime({name: get_profile("newport") for name in names}, models)
        self.faults = RunFaults(cast(Fleet, self.fleet), names, self.time, lambda *event: self.events.append(event))

    async def ask(self, device: str, harm: Fault, weight: int = 0) -> "asyncio.Future[str]":
        asking = asyncio.ensure_future(self.faults.handle(ControlRequest(device, harm, weight)))
        await asyncio.sleep(0)
        return asking

    async def next_task(self, drive: FakeDrive) -> None:
        self.fleet.sessions()
        await self.faults.before_task(drive.session, Deadline(30))

    def seconds(self) -> float:
        return self.time.seconds("csd-00", "wall", PhaseSeconds(), {8: 10}).total


async def test_an_agents_fault_waits_for_the_devices_next_task_and_is_recorded_then() -> None:
    drive, other = Obedient("csd-00"), Obedient("csd-01")
    lab = Lab(drive, other)
    asking = await lab.ask("csd-00", Fault.SLOW, 50)
    await lab.next_task(other)
    assert (drive.frames, other.frames, lab.events, asking.done()) == ([], [], [], False)
    await lab.next_task(drive)
    assert await asking == "slow: a competing task of weight 50"
    assert drive.frames == [Disturb(50)]
    assert lab.events == [("csd-00", EventKind.INJECTED, "slow: a competing task of weight 50")]
    await lab.next_task(drive)
    assert len(drive.frames) == 1


async def test_faults_are_done_in_the_order_in_which_they_were_asked_for() -> None:
    drive = Obedient("csd-00")
    lab = Lab(drive)
    asked = [await lab.ask("csd-00", harm) for harm in (Fault.FILL, Fault.CORRUPT, Fault.CLEAR, Fault.SLOW)]
    await lab.next_task(drive)
    assert [await each for each in asked] == [detail for _, _, detail in lab.events]
    assert lab.events[0][2] == "fill: 4096 bytes of its disk are taken"
    assert drive.frames == [Sabotage("fill"), Sabotage("corrupt"), Sabotage("clear"), Disturb(0)]


async def test_a_device_that_cannot_says_why_and_goes_on() -> None:
    class Cannot(FakeDrive):
        def answer(self, frame: AnyFrame) -> Iterator[Answer]:
            yield Failed("Sabotage", "its disk is the host's")

    drive = Cannot("csd-00")
    lab = Lab(drive)
    asking = await lab.ask("csd-00", Fault.FILL)
    await lab.next_task(drive)
    with pytest.raises(DeviceFailed, match="its disk is the host's"):
        await asking
    assert lab.events == []
    assert not drive.session.closed


class Dies(FakeDrive):
    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        raise Cut


class Babbles(FakeDrive):
    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        yield Ready(5)


@pytest.mark.parametrize(("kind", "error"), [(Dies, DeviceLost), (Babbles, ProtocolError)])
async def test_a_device_lost_over_it_is_lost_for_the_round_too(kind: type[FakeDrive], error: type[Exception]) -> None:
    drive = kind("csd-00")
    lab = Lab(drive)
    asking, waiting = await lab.ask("csd-00", Fault.CORRUPT), await lab.ask("csd-00", Fault.SLOW)
    with pytest.raises(error):
        await lab.next_task(drive)
    with pytest.raises(error):
        await asking
    assert not waiting.done()
    again = Obedient("csd-00")
    lab.fleet.drives = [again]
    await lab.next_task(again)
    assert await waiting == "slow: the competing task has ended"


async def test_a_modelled_device_is_slowed_by_its_table_until_its_session_ends() -> None:
    drive = Obedient("csd-00")
    lab = Lab(drive, modelled=True)
    before = lab.seconds()
    asking = await lab.ask("csd-00", Fault.SLOW, 100)
    assert lab.seconds() == before
    await lab.next_task(drive)
    await asking
    assert lab.seconds() == pytest.approx(2 * before)
    assert drive.frames == []
    await lab.next_task(drive)
    assert lab.seconds() == pytest.approx(2 * before)
    again = Obedient("csd-00")
    lab.fleet.drives = [again]
    await lab.next_task(again)
    assert lab.seconds() == before


async def test_cutting_off_and_healing_happen_at_once() -> None:
    lab = Lab(FakeDrive("csd-00"))
    await lab.faults.handle(ControlRequest("csd-00", Fault.CUT))
    assert lab.fleet.cut_off == {"csd-00"}
    await lab.faults.handle(ControlRequest("csd-00", Fault.HEAL))
    assert lab.fleet.cut_off == set()
    assert [(device, what) for device, what, _ in lab.events] == [("csd-00", EventKind.INJECTED)] * 2


async def test_what_another_does_is_only_written_down() -> None:
    lab = Lab(FakeDrive("csd-00"))
    assert await lab.faults.handle(ControlRequest("csd-00", Fault.CUT, note="cut at the engine")) == "cut at the engine"
    assert lab.fleet.cut_off == set()
    assert lab.events == [("csd-00", EventKind.INJECTED, "cut at the engine")]


async def test_what_cannot_be_done_is_refused_at_once_and_leaves_no_trace() -> None:
    lab = Lab(FakeDrive("csd-00"))
    for device, harm, error in (
        ("csd-77", Fault.CUT, ConfigurationError),
        ("csd-00", Fault.KILL, ConfigurationError),
        ("csd-00", Fault.REVIVE, ConfigurationError),
        ("csd-09", Fault.FILL, DeviceLost),
    ):
        with pytest.raises(error, match=device if device != "csd-00" else str(harm)):
            await lab.faults.handle(ControlRequest(device, harm))
    assert lab.events == []


async def test_what_still_waits_when_the_run_ends_is_answered() -> None:
    lab = Lab(Obedient("csd-00"))
    async with lab.faults:
        asking = await lab.ask("csd-00", Fault.FILL)
    with pytest.raises(DeviceLost, match="the run ended before csd-00 was given another task"):
        await asking


async def test_one_who_no_longer_waits_does_no_harm() -> None:
    drive = Obedient("csd-00")
    lab = Lab(drive)
    asking = await lab.ask("csd-00", Fault.FILL)
    asking.cancel()
    await asyncio.sleep(0)
    await lab.next_task(drive)
    assert drive.frames == [Sabotage("fill")]
    async with lab.faults:
        pass
