"""What `csd-emu inject` makes of its arguments, and of an array's files."""

import asyncio
import fcntl
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from csd_emu.config.array_file import Device
from csd_emu.engines import DevicePlan, Fault
from csd_emu.engines.engine_protocol import ENGINE_FAULTS
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import ConfigurationError, DeviceError, EnvironmentUnfit
from firmware_agent.common.identity import Identity, read_identity, write_identity
from host.app import inject_fault as injection
from host.app.inject_fault import Injection, InjectReport, _raise_incarnation, inject_fault
from host.fleet.array_state import ArrayState, DeviceState, devices_held
from host.fleet.control_socket import ControlRequest, ControlServer
from host.fleet.lifecycle import clear_array
from tests.support.fakes import FakeEngine

STATE = ArrayState({}, {}, 0, "run", True, 1, (DeviceState("csd-00", 0, "newport", 3, "a" * 64, 5),))
IDENTITY = Identity("lab", "csd-00", 3, "127.0.0.1:1", "wall", 0.0, b"e" * 64, "ca", "certificate", "key")


def read(fault: str, **changes: Any) -> Injection:
    given = {"weight": None, "after": 0.0, "duration": None} | changes
    return Injection.read("lab", "csd-00", fault, **given)


def plan_of(folder: Path) -> DevicePlan:
    device = Device(name="csd-00", number=0, profile="newport")
    return DevicePlan("lab", "run", device, folder, folder / "shard.tar", folder / "identity.tar")


def test_every_fault_can_be_asked_for(subtests: pytest.Subtests) -> None:
    for fault in list(Fault):
        with subtests.test(fault=fault):
            assert read(fault.value).harm is fault


def test_what_cannot_be_meant_is_refused(subtests: pytest.Subtests) -> None:
    for fault, changes, message in [
        ("explode", {}, "there is no fault 'explode'; there are: kill, freeze"),
        ("frieze", {}, "did you mean 'freeze'"),
        ("KILL", {}, "there is no fault 'KILL'"),
        ("kill", {"weight": 100}, "--weight goes with slow, not with kill"),
        ("slow", {"weight": -1}, "--weight -1"),
        ("slow", {"weight": 10_001}, "--weight 10001"),
        ("kill", {"duration": 1.0}, "--for: kill is not a state"),
        ("corrupt", {"duration": 1.0}, "--for: corrupt is not a state"),
        ("slow", {"weight": 0, "duration": 1.0}, "--for: slow is not a state"),
        ("freeze", {"duration": math.inf}, "--for must be a number"),
        ("freeze", {"after": math.nan}, "--after must be a number"),
    ]:
        with subtests.test(fault=fault, changes=changes, message=message):
            with pytest.raises(ConfigurationError, match=message) as caught:
                read(fault, **changes)
            assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("fault", "ended"),
    [("freeze", Fault.THAW), ("cut", Fault.HEAL), ("slow", Fault.SLOW), ("fill", Fault.CLEAR)],
)
def test_a_state_is_ended_by_its_opposite(fault: str, ended: Fault) -> None:
    undone = read(fault, duration=5.0).undone()
    assert (undone.harm, undone.weight) == (ended, 0)


@pytest.mark.parametrize(("written", "newest"), [(3, 4), (7, 8), (1, 4)])
def test_a_revived_device_is_one_incarnation_on_and_otherwise_itself(tmp_path: Path, written: int, newest: int) -> None:
    """The newest that anybody knows of counts: state file and identity may have been written at different times."""
    folder = tmp_path / "csd-00"
    folder.mkdir()
    identity = msgspec.structs.replace(IDENTITY, incarnation=written)
    write_identity(folder / "identity.tar", identity)
    plan = plan_of(folder)
    assert _raise_incarnation(plan, STATE) == newest
    fresh = read_identity(folder / "identity.tar")
    assert (fresh.incarnation, len(fresh.entropy)) == (newest, 64)
    assert fresh.entropy != identity.entropy
    assert fresh.unix_seconds > identity.unix_seconds
    same = {"incarnation": 0, "entropy": b"", "unix_seconds": 0.0}
    assert msgspec.structs.replace(fresh, **same) == msgspec.structs.replace(identity, **same)
    assert [path.name for path in folder.iterdir()] == ["identity.tar"]


def test_a_link_that_the_emulators_user_planted_is_not_written_through(tmp_path: Path) -> None:
    folder, victim = tmp_path / "csd-00", tmp_path / "victim"
    folder.mkdir()
    write_identity(victim, IDENTITY)
    before = victim.read_bytes()
    names = ("identity.tar", ".csd-00.identity.tar")
    for name in (*names, *(f"{name}.partial" for name in names)):
        (folder / name).symlink_to(victim)
    plan = plan_of(folder)
    _raise_incarnation(plan, STATE)
    assert victim.read_bytes() == before
    assert not (folder / "identity.tar").is_symlink()


def test_the_state_remembers_the_newest_incarnation(tmp_path: Path) -> None:
    other = DeviceState("csd-01", 1, "newport", 1, "b" * 64, 5)
    state = ArrayState({}, {}, 0, "run", True, 1, (*STATE.devices, other))
    state.with_incarnation("csd-00", 4).save(tmp_path)
    loaded = ArrayState.load(tmp_path)
    assert loaded is not None
    assert [device.incarnation for device in loaded.devices] == [4, 1]
    assert loaded.with_incarnation("csd-00", 3) == state


def test_whoever_holds_the_devices_keeps_others_waiting(tmp_path: Path) -> None:
    with devices_held(tmp_path):
        descriptor = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    with devices_held(tmp_path), devices_held(tmp_path / "not-there"):
        pass


class Site:
    """An array that is up, on a fake engine, and a run on it that writes down what it is told."""

    def __init__(self, paths: Paths, engine: FakeEngine) -> None:
        self.paths, self.engine = paths, engine
        self.folder = paths.arrays / "lab"
        devices = tuple(DeviceState(f"csd-0{n}", n, "newport", 3, "a" * 64, 5) for n in (0, 1))
        config = {"name": "lab", "engine": "native", "devices": [{"profile": "newport", "count": 2}]}
        self.state = ArrayState(config, {}, 0, "run", True, 1, devices)
        for device in devices:
            (self.folder / "devices" / device.name).mkdir(parents=True)
            write_identity(self.folder / "devices" / device.name / "identity.tar", IDENTITY)
        self.state.save(self.folder)
        self.heard: list[str] = []

    def inject(self, device: str, fault: str, **changes: Any) -> InjectReport:
        given = {"weight": None, "after": 0.0, "duration": None} | changes
        return inject_fault(Injection.read("lab", device, fault, **given), self.paths, Silent())

    def run(self) -> ControlServer:
        async def hear(request: ControlRequest) -> str:
            self.heard.append(request.note or f"{request.harm} {request.device} {request.weight}")
            self.engine.done.append("told")
            return self.heard[-1]

        return ControlServer(self.paths.control("lab"), hear)


@pytest.fixture
def site(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(paths, FakeEngine("csd-00", faults=ENGINE_FAULTS - {Fault.CUT, Fault.HEAL}))
    monkeypatch.setattr(injection, "make_engine", lambda config, paths: site.engine)
    return site


async def test_a_run_is_told_before_its_drive_is_harmed(site: Site) -> None:
    async with site.run():
        report = await asyncio.to_thread(site.inject, "csd-00", "kill")
    assert report == InjectReport("lab", "csd-00", "kill", "kill", True)
    assert site.engine.done == ["told", "kill csd-00", "close"]


async def test_what_the_engine_then_failed_to_do_is_put_right(site: Site) -> None:
    site.engine.broken = "libvirt does not answer"
    async with site.run():
        with pytest.raises(DeviceError, match="libvirt does not answer"):
            await asyncio.to_thread(site.inject, "csd-00", "freeze")
    assert site.heard == ["freeze", "freeze was not done: libvirt does not answer"]


async def test_what_the_engine_cannot_do_is_the_runs(site: Site) -> None:
    async with site.run():
        report = await asyncio.to_thread(site.inject, "csd-00", "cut")
        assert (report.detail, report.recorded) == ("cut csd-00 100", True)
        await asyncio.to_thread(site.inject, "csd-01", "slow", weight=7)
    assert site.heard == ["cut csd-00 100", "slow csd-01 7"]
    assert site.engine.running == {"csd-00"}


async def test_a_fault_for_a_while_is_ended(site: Site) -> None:
    async with site.run():
        report = await asyncio.to_thread(site.inject, "csd-00", "freeze", duration=0.0)
    assert report.detail == "freeze; then thaw"
    assert [each for each in site.engine.done if "csd" in each] == ["freeze csd-00", "thaw csd-00"]


def test_a_fault_for_a_while_is_ended_also_if_the_user_has_no_patience(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(injection, "_wait", impatient)
    with pytest.raises(KeyboardInterrupt):
        site.inject("csd-00", "freeze", duration=1000.0)
    assert [each for each in site.engine.done if "csd" in each] == ["freeze csd-00", "thaw csd-00"]


def test_a_dead_drive_is_started_as_the_next_incarnation(site: Site) -> None:
    report = site.inject("csd-01", "revive")
    assert (report.detail, report.recorded) == ("revive: incarnation 4", False)
    assert site.engine.done == ["prepare", "start csd-01", "close"]
    state = ArrayState.load(site.folder)
    assert state is not None
    assert [device.incarnation for device in state.devices] == [3, 4]
    assert read_identity(site.folder / "devices" / "csd-01" / "identity.tar").incarnation == 4


def test_a_drive_that_runs_is_not_started_twice(site: Site) -> None:
    with pytest.raises(DeviceError, match="csd-00 runs, so it cannot be revived"):
        site.inject("csd-00", "revive")
    assert site.engine.done == ["close"]
    assert ArrayState.load(site.folder) == site.state
    assert read_identity(site.folder / "devices" / "csd-00" / "identity.tar") == IDENTITY


@pytest.mark.parametrize("run", [None, "another"])
def test_an_array_that_ended_while_the_engine_prepared_gets_no_drive(site: Site, run: str | None) -> None:
    """It may be another array of this name by then."""

    def prepare(progress: object) -> None:
        (site.folder / "array.json").unlink()
        if run is not None:
            msgspec.structs.replace(site.state, run=run).save(site.folder)

    site.engine.prepare = prepare  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="array 'lab' has ended meanwhile"):
        site.inject("csd-01", "revive")
    assert site.engine.running == {"csd-00"}


def test_no_drive_is_started_while_its_array_ends_and_the_other_way_round(site: Site) -> None:
    """Both hold the devices: so a drive is either swept with the others, or finds that the array has ended."""
    held = []

    def look(name: str) -> Any:
        before = getattr(site.engine, name)

        def method(argument: Any) -> Any:
            descriptor = os.open(site.folder / "devices", os.O_RDONLY)
            try:
                with pytest.raises(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.close(descriptor)
            held.append(name)
            return before(argument)

        return method

    site.engine.start, site.engine.sweep = look("start"), look("sweep")  # type: ignore[method-assign]
    site.inject("csd-01", "revive")
    assert clear_array(site.engine, "lab", site.folder) == ["csd-00", "csd-01"]
    assert held == ["start", "sweep"]
    with pytest.raises(ConfigurationError, match="array 'lab' is not up"):
        site.inject("csd-01", "revive")


@pytest.mark.parametrize("fault", ["kill", "freeze", "thaw"])
def test_a_dead_drive_cannot_be_harmed(site: Site, fault: str) -> None:
    with pytest.raises(DeviceError, match=f"csd-01 does not run, so {fault} .*csd-emu inject lab csd-01 revive"):
        site.inject("csd-01", fault)


@pytest.mark.parametrize("fault", ["cut", "slow", "corrupt", "fill", "clear"])
def test_what_only_a_run_can_do_needs_one(site: Site, fault: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=f"{fault} is done by the run on array 'lab', and none is going on"):
        site.inject("csd-00", fault)
