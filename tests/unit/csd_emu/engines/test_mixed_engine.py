"""An array on several engines: everything about a device goes to its own, such as that of the node ``host``."""

import asyncio
import contextlib
from pathlib import Path
from typing import cast

import pytest

from csd_emu.config.array_file import ArrayConfig, Device
from csd_emu.engines import DevicePlan, Engine, Fault, MixedEngine, faults_of
from csd_emu.engines.engine_protocol import ENGINE_FAULTS
from csd_emu.util.deadline import Deadline
from csd_emu.util.node_names import HOST
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import DeviceError
from tests.support.fakes import FakeEngine

DEVICES = ArrayConfig.model_validate(
    {"name": "lab", "host": {"trains": True}, "devices": [{"profile": "newport", "count": 2}]}
).list_nodes()
DRIVE, NODE = DEVICES[0], DEVICES[-1]


def plan_of(device: Device) -> DevicePlan:
    folder = Path("/nonexistent") / device.name
    return DevicePlan("lab", "run", device, folder, folder / "shard", folder / "identity")


def engine_of(drives: FakeEngine, host: FakeEngine) -> MixedEngine:
    return MixedEngine({"qemu": cast(Engine, drives), "native": cast(Engine, host)})


@pytest.fixture
def drives() -> FakeEngine:
    return FakeEngine(faults=ENGINE_FAULTS)


@pytest.fixture
def host() -> FakeEngine:
    return FakeEngine(faults=frozenset({Fault.KILL}))


def test_the_node_is_the_last_of_the_arrays_devices() -> None:
    assert [device.name for device in DEVICES] == ["csd-00", "csd-01", HOST]


@pytest.mark.parametrize(("device", "mine"), [(DRIVE, "drives"), (NODE, "host")])
def test_a_devices_whole_life_is_on_its_own_engine(
    drives: FakeEngine, host: FakeEngine, device: Device, mine: str
) -> None:
    engine = engine_of(drives, host)
    own, other = (drives, host) if mine == "drives" else (host, drives)
    plan = plan_of(device)
    assert engine.find(plan) is None
    handle = engine.start(plan)
    assert own.running == {device.name}
    assert engine.find(plan) == handle
    assert engine.alive(handle)
    asyncio.run(engine.wait_ready(handle, asyncio.sleep(0), Deadline(1.0)))
    engine.inject(handle, Fault.KILL)
    assert not engine.alive(handle)
    engine.stop(engine.start(plan))
    assert own.done == [f"start {device.name}", f"kill {device.name}", f"start {device.name}"]
    assert (own.running, other.running, other.done) == (set(), set(), [])


def test_a_virtual_machine_has_a_hypervisor_and_a_process_has_none(drives: FakeEngine, host: FakeEngine) -> None:
    drives.hypervisor = "rack-1"
    engine = engine_of(drives, host)
    assert [engine.hypervisor_of(device) for device in (DRIVE, NODE)] == ["rack-1", None]


def test_the_array_is_both_engines_together(drives: FakeEngine, host: FakeEngine) -> None:
    engine = engine_of(drives, host)
    engine.prepare(Silent())
    assert (drives.done, host.done) == (["prepare"], ["prepare"])
    assert engine.faults == drives.faults
    assert faults_of(engine, DRIVE) == drives.faults
    assert faults_of(engine, NODE) == host.faults == faults_of(cast(Engine, host), NODE)
    assert engine.list_arrays() == []
    for device in reversed(DEVICES):
        engine.start(plan_of(device))
    assert engine.list_devices("lab") == ["csd-00", "csd-01", HOST]
    assert engine.list_arrays() == ["lab"]
    assert engine.sweep("lab") == ["csd-00", "csd-01", HOST]
    assert engine.list_devices("lab") == engine.sweep("lab") == engine.list_arrays() == []
    with contextlib.closing(engine):
        pass
    assert (drives.done[-1], host.done[-1]) == ("close", "close")


@pytest.mark.parametrize("left", [(), ("csd-00",), (HOST,)])
def test_what_is_left_on_one_engine_alone_is_listed_and_swept(left: tuple[str, ...]) -> None:
    drives = FakeEngine(*(name for name in left if name != HOST))
    host = FakeEngine(*(name for name in left if name == HOST))
    engine = engine_of(drives, host)
    assert engine.list_arrays() == (["lab"] if left else [])
    assert engine.list_devices("lab") == list(left)
    assert engine.sweep("lab") == list(left)
    assert drives.running == host.running == set()


@pytest.mark.parametrize("names", [("csd-00", HOST), ("csd-00", "csd-01", HOST)])
def test_where_both_engines_see_the_same_processes_each_is_named_once(names: tuple[str, ...]) -> None:
    """As with native drives: both look through this machine's processes."""
    engine = engine_of(FakeEngine(*names), FakeEngine(*names))
    assert engine.list_devices("lab") == list(names)
    assert engine.sweep("lab") == list(names)


@pytest.mark.parametrize("device", [DRIVE, NODE])
def test_an_engines_error_is_passed_on(device: Device) -> None:
    broken, whole = FakeEngine(), FakeEngine()
    broken.broken = "no memory"
    engine = engine_of(broken, whole) if device is DRIVE else engine_of(whole, broken)
    with pytest.raises(DeviceError, match="no memory"):
        engine.start(plan_of(device))


def test_one_engines_failure_keeps_no_other_from_being_swept(
    drives: FakeEngine, host: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep(array: str) -> list[str]:
        raise DeviceError("libvirt does not answer")

    monkeypatch.setattr(drives, "sweep", sweep)
    host.running.add(HOST)
    with pytest.raises(DeviceError, match="libvirt does not answer"):
        engine_of(drives, host).sweep("lab")
    assert host.running == set()
