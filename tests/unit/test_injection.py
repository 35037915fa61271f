"""What `csd-emu inject` makes of its arguments, and of an array's files."""

import fcntl
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from csd_emu.array import Device
from csd_emu.engines import DevicePlan
from firmware_agent.errors import ConfigurationError
from firmware_agent.identity import Identity, read_identity, write_identity
from host.array_state import ArrayState, DeviceState, devices_held
from host.control import Harm
from host.injection import Injection, _raise_incarnation

STATE = ArrayState({}, {}, 0, "run", True, 1, (DeviceState("csd-00", 0, "newport", 3, "a" * 64, 5),))
IDENTITY = Identity("lab", "csd-00", 3, "127.0.0.1:1", "wall", 0.0, b"e" * 64, "ca", "certificate", "key")


def read(fault: str, **changes: Any) -> Injection:
    given = {"weight": None, "after": 0.0, "duration": None} | changes
    return Injection.read("lab", "csd-00", fault, **given)


def plan_of(folder: Path) -> DevicePlan:
    device = Device(name="csd-00", number=0, profile="newport")
    return DevicePlan("lab", "run", device, folder, folder / "shard.tar", folder / "identity.tar")


@pytest.mark.parametrize("fault", list(Harm))
def test_every_fault_can_be_asked_for(fault: Harm) -> None:
    assert read(fault.value).harm is fault


@pytest.mark.parametrize(
    ("fault", "changes", "message"),
    [
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
    ],
)
def test_what_cannot_be_meant_is_refused(fault: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        read(fault, **changes)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("fault", "ended"),
    [("freeze", Harm.THAW), ("cut", Harm.HEAL), ("slow", Harm.SLOW), ("fill", Harm.CLEAR)],
)
def test_a_state_is_ended_by_its_opposite(fault: str, ended: Harm) -> None:
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
    for name in ("identity.tar", "identity.tar.partial"):
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
