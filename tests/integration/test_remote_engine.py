"""Real drives as devices: what is lent, what is sent, and what is said of a drive that cannot be had.

The drives are folders, their control script a stand-in; the contract suite has real ones.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path, PurePosixPath

import msgspec
import pytest
from cryptography import x509

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import DevicePlan, Fault, Surroundings
from csd_emu.engines.remote import remote_engine as remote_module
from csd_emu.engines.remote.drive_layout import DriveLayout
from csd_emu.engines.remote.drive_slot import Lease, Slot
from csd_emu.engines.remote.inventory import DriveEntry, drives_of
from csd_emu.engines.remote.remote_engine import RemoteEngine, check_listens
from csd_emu.engines.remote.server_id import server_id
from csd_emu.engines.remote.shell import Shell
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import ConfigurationError, DeviceError, DriveUnfit, DriveUnreachable, EnvironmentUnfit
from firmware_agent.common.identity import Identity, read_identity, write_identity
from host.app.array_actions import bring_up
from host.config.job_file import DEFAULT_DATA
from host.fleet.certificates import Authority
from host.fleet.enrolment_authority import LENT_LIFETIME
from host.fleet.lifecycle import ArrayRequest, _identity
from tests.support.local_shell import LocalShell

SCRIPT = """#!/bin/sh
# A drive's control script whose agent is a file, `state`: running or stopped.
cd "$(dirname "$0")/.." || exit 1
echo "$*" >> calls
case $1 in
status)
    state=$(cat state); enrolled=false; [ -f enrolled ] && enrolled=true
    pid=7; [ "$state" = stopped ] && pid=0; [ "$state" = crashed ] && { pid=0; state=failed; }
    printf '{"state":"%s","version":"%s","pid":%s,"enrolled":%s}\\n' "$state" "$(cat version)" $pid $enrolled ;;
put-slot) for new in slot/*.new; do mv "$new" "${new%.new}"; done ;;
start) echo running > state ;;
signal) [ "$(cat state)" != stopped ] || exit 1; [ "$2" != KILL ] || echo stopped > state ;;
esac
"""


class Bench:
    """Two drives, and the connections to them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.opened, self.cut = folder, 0, False
        lines = ["name: bench", "defaults: {host_address: 127.0.0.1}", "drives:"]
        for name in ("left", "right"):
            drive = folder / name
            for part in ("bin", "slot"):
                (drive / part).mkdir(parents=True)
            (drive / "bin" / "csd-agent").write_text(SCRIPT)
            (drive / "bin" / "csd-agent").chmod(0o755)
            for file, content in (("state", "waiting"), ("version", "abc"), ("enrolled", ""), ("calls", "")):
                (drive / file).write_text(content)
            lines.append(f"  {name}: {{folder: {drive}}}")
        (folder / "drives.yaml").write_text("\n".join(lines) + "\n")

    def engine(self, array: str = "lab", address: str = "127.0.0.1", server: str = "here") -> RemoteEngine:
        content = {
            "name": array, "engine": "remote", "inventory": str(self.folder / "drives.yaml"),
            "host": {"address": address}, "devices": [{"drives": ["left", "right"], "profile": "newport"}],
        }  # fmt: skip
        self.config = ArrayConfig.model_validate(content)
        return RemoteEngine(self.config, server, self.connect)

    def connect(self, drive: DriveEntry, deadline: Deadline) -> contextlib.closing[Shell]:
        self.opened += 1
        return contextlib.closing(LocalShell(drive, {"PATH": "/usr/bin:/bin"}, before=self.check))

    def check(self, command: str) -> None:
        if self.cut:
            self.cut = False
            raise DriveUnreachable("drive left: the connection broke; try again")

    def calls(self, name: str = "left") -> list[str]:
        return (self.folder / name / "calls").read_text().splitlines()

    def plan(self, certificate: str = "", array: str = "lab", run: str = "run") -> DevicePlan:
        device, folder = self.config.list_devices()[0], self.folder / "array"
        folder.mkdir(exist_ok=True)
        (folder / "shard.tar").write_bytes(b"records")
        identity = Identity(array, device.name, 1, "127.0.0.1:1", "wall", 0.0, b"", "", certificate, "")
        write_identity(folder / "identity.tar", identity)
        return DevicePlan(array, run, device, folder, folder / "shard.tar", folder / "identity.tar")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(remote_module, "_LOOK_SECONDS", 0.0)
    return Bench(tmp_path)


def test_a_drive_is_lent_and_taken_back(bench: Bench) -> None:
    engine = bench.engine()
    engine.prepare(Silent())
    assert engine.list_devices("lab") == engine.list_arrays() == []
    handle = engine.start(bench.plan())
    slot = bench.folder / "left" / "slot"
    assert {path.name for path in slot.iterdir()} == {"identity.tar", "shard.tar", "lease"}
    assert msgspec.json.decode((slot / "lease").read_bytes(), type=Lease) == Lease("lab", "left", "run", "here")
    assert (engine.list_devices("lab"), engine.list_arrays()) == (["left"], ["lab"])
    assert engine.find(handle.plan) == handle
    engine.stop(handle)
    assert not engine.alive(handle)
    assert {path.name for path in slot.iterdir()} == {"shard.tar"}  # the next run need not send it again
    engine.stop(handle)


def test_a_shard_that_lies_there_is_not_sent_again(bench: Bench) -> None:
    engine = bench.engine()
    handle = engine.start(bench.plan())
    shard = bench.folder / "left" / "slot" / "shard.tar"
    first = shard.stat().st_ino
    engine.stop(handle)
    handle = engine.start(bench.plan())
    assert shard.stat().st_ino == first
    engine.stop(handle)
    shard.write_bytes(b"others")
    (shard.parent / "shard.tar.new").write_bytes(b"oth")  # a copy that was cut
    handle = engine.start(bench.plan())
    assert shard.read_bytes() == b"records"
    engine.stop(handle)
    (shard.parent / "shard.tar.new").write_bytes(b"oth")  # another array's, whose copy was cut
    engine.start(bench.plan())
    assert shard.read_bytes() == b"records"
    assert {path.name for path in shard.parent.iterdir()} == {"identity.tar", "shard.tar", "lease"}


def test_a_drive_with_records_in_place_gets_no_shard(bench: Bench) -> None:
    engine = bench.engine()
    plan = bench.plan()
    device = plan.device.model_copy(update={"data": "/data"})
    engine.start(DevicePlan(plan.array, plan.run, device, plan.folder, plan.shard, plan.identity))
    assert not (bench.folder / "left" / "slot" / "shard.tar").exists()


def test_every_drive_that_cannot_be_had_is_one_line_with_the_remedy(bench: Bench) -> None:
    (bench.folder / "left" / "version").write_text("")
    (bench.folder / "right" / "enrolled").unlink()
    with pytest.raises(EnvironmentUnfit) as caught:
        bench.engine().prepare(Silent())
    left, right = str(caught.value).splitlines()
    inventory = bench.folder / "drives.yaml"
    assert left == f"drive left: no agent is installed; run csd-emu deploy {inventory} install --drives left"
    assert right == f"drive right: is not enrolled; run csd-emu deploy {inventory} enrol --drives right"


def test_a_ticket_without_a_certificate_needs_an_enrolment(bench: Bench) -> None:
    (bench.folder / "left" / "enrolled").unlink()
    engine = bench.engine()
    with pytest.raises(DeviceError, match="left: is not enrolled"):
        engine.start(bench.plan())
    engine.start(bench.plan(certificate="PEM"))


def test_a_drive_that_is_lent_to_another_array_is_left_alone(bench: Bench) -> None:
    other = bench.engine("other")
    mine = other.start(bench.plan(array="other"))
    engine = bench.engine()
    with pytest.raises(
        EnvironmentUnfit, match="drive left: is lent to array 'other' of here; end that with csd-emu down other"
    ):
        engine.prepare(Silent())
    with pytest.raises(DeviceError, match="is lent to array 'other'"):
        engine.start(bench.plan())
    assert engine.sweep("lab") == []
    assert other.alive(mine)
    assert engine.sweep("other") == ["left"]
    assert not other.alive(mine)


@pytest.mark.parametrize("state", ["waiting", "crashed", "stopped"])
def test_an_array_of_the_same_name_on_another_server_is_another_one(bench: Bench, state: str) -> None:
    there = bench.engine(server="there")
    theirs = there.start(bench.plan())
    (bench.folder / "left" / "state").write_text(state)  # an agent that just starts anew has no process
    here = bench.engine()
    with pytest.raises(EnvironmentUnfit, match="drive left: is lent to array 'lab' of there"):
        here.prepare(Silent())
    with pytest.raises(DeviceError, match="is lent to array 'lab' of there"):
        here.start(bench.plan())
    assert here.find(theirs.plan) is None
    assert here.list_devices("lab") == here.sweep("lab") == here.list_arrays() == []
    assert there.sweep("lab") == ["left"]
    here.start(bench.plan())


def test_a_later_up_of_the_same_array_takes_the_place_of_one_that_was_lost(bench: Bench) -> None:
    engine = bench.engine()
    first = engine.start(bench.plan(run="one"))
    second = engine.start(bench.plan(run="two"))
    assert (engine.alive(first), engine.alive(second)) == (False, True)


def test_what_a_power_cut_left_of_a_lease_is_nobodys(bench: Bench) -> None:
    (bench.folder / "left" / "slot" / "lease").write_text('{"array":"l')
    engine = bench.engine()
    assert engine.alive(engine.start(bench.plan()))


def test_of_many_that_want_a_drive_at_one_time_one_has_it(bench: Bench) -> None:
    bench.engine()
    drive, meet = next(iter(drives_of(bench.config).values())), threading.Barrier(8)

    def take(number: int) -> bool:
        slot = Slot(LocalShell(drive, {"PATH": "/usr/bin:/bin"}), DriveLayout(PurePosixPath(drive.folder)))
        lease = Lease("lab", "left", f"run{number}", f"server{number}")
        meet.wait(30.0)
        try:
            slot._take(lease)
        except DriveUnfit:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(take, range(8))) == [False] * 7 + [True]
    assert [path.name for path in (bench.folder / "left" / "slot").iterdir()] == ["lease"]


def test_a_server_keeps_its_name_and_two_have_two(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(server_id, [tmp_path / "one"] * 8))
    assert len(names | {server_id(tmp_path / "one"), server_id(tmp_path / "two")}) == 2


def test_a_killed_agent_is_not_lent_any_more_when_it_is_started_again(bench: Bench) -> None:
    engine = bench.engine()
    handle = engine.start(bench.plan())
    engine.inject(handle, Fault.FREEZE)
    engine.inject(handle, Fault.KILL)
    assert bench.calls()[-2:] == ["signal KILL", "status"]
    (bench.folder / "left" / "state").write_text("waiting")  # by its supervisor
    assert not engine.alive(handle)
    with pytest.raises(DeviceError, match="left does not run"):
        engine.inject(handle, Fault.FREEZE)
    with pytest.raises(DeviceError, match="cut cannot be done to a process from outside"):
        engine.inject(handle, Fault.CUT)


def test_an_agent_that_crashed_comes_back_and_one_that_says_it_failed_does_not(bench: Bench) -> None:
    engine = bench.engine()
    handle = engine.start(bench.plan())
    for state, alive in (("crashed", True), ("waiting", True), ("failed", False), ("stopped", False)):
        (bench.folder / "left" / "state").write_text(state)
        assert engine.alive(handle) == alive


def test_a_frozen_agent_is_woken_before_its_ticket_goes(bench: Bench) -> None:
    engine = bench.engine()
    handle = engine.start(bench.plan())
    engine.inject(handle, Fault.FREEZE)
    engine.stop(handle)
    assert [call for call in bench.calls() if call.startswith("signal")][-2:] == ["signal STOP", "signal CONT"]


def test_a_connection_is_kept_and_opened_again_when_it_broke(bench: Bench) -> None:
    engine = bench.engine()
    handle = engine.start(bench.plan())
    assert bench.opened == 1
    bench.cut = True
    assert engine.alive(handle)
    assert bench.opened == 2
    engine.close()
    assert engine.alive(handle)
    assert bench.opened == 3


def test_the_agents_last_words_are_fetched(bench: Bench) -> None:
    engine = bench.engine()
    plan = bench.plan()
    handle = engine.start(plan)
    (bench.folder / "left" / "slot" / "console.log").write_text("one\ntwo\n")
    assert engine.alive(handle)
    assert plan.console.read_text() == "one\ntwo\n"


def test_a_drive_that_is_out_of_reach_is_not_alive_and_does_not_hold_up_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bench.engine()
    handle = engine.start(bench.plan())

    def refuse(drive: DriveEntry, deadline: Deadline) -> contextlib.closing[Shell]:
        raise DriveUnreachable(f"drive {drive.name}: nobody answers")

    engine.close()
    for line in engine._lines.values():
        line._connect = refuse
    assert not engine.alive(handle)
    assert engine.list_devices("lab") == engine.sweep("lab") == []
    with pytest.raises(EnvironmentUnfit, match=r"drive left: nobody answers\ndrive right: nobody answers"):
        engine.prepare(Silent())


def test_a_drive_that_cannot_dial_is_led_back_through_ssh_also_after_a_cut(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bench.folder / "drives.yaml"
    path.write_text(path.read_text().replace("host_address: 127.0.0.1", "host_address: ssh"))
    asked: list[tuple[str, int, int]] = []

    def forward(shell: LocalShell, host: str, port: int, drive_port: int = 0) -> int:
        asked.append((host, port, drive_port))
        return drive_port or 4711

    monkeypatch.setattr(LocalShell, "forward", forward)
    engine = bench.engine()
    assert engine.surroundings(bench.config.list_devices()[0]).host_address == "127.0.0.1"
    handle = engine.start(bench.plan())
    assert read_identity(bench.folder / "left" / "slot" / "identity.tar").host_address == "127.0.0.1:4711"
    bench.cut = True
    assert engine.alive(handle)
    assert asked == [("127.0.0.1", 1, 0), ("127.0.0.1", 1, 4711)]


def test_an_array_that_rests_on_an_ssh_connection_is_not_kept_up(bench: Bench) -> None:
    path = bench.folder / "drives.yaml"
    path.write_text(path.read_text().replace("host_address: 127.0.0.1", "host_address: ssh"))
    bench.engine()
    request = ArrayRequest(bench.config, DEFAULT_DATA, 0)
    with pytest.raises(ConfigurationError, match="left, right: host_address: ssh lasts as long as the command"):
        bring_up(request, Paths(*(bench.folder / name for name in ("cache", "state", "run"))), Silent())


@pytest.mark.parametrize(
    ("dialled", "listens", "fits"),
    [
        ("192.0.2.7", "0.0.0.0", True),
        ("192.0.2.7", "192.0.2.7", True),
        ("198.51.100.1", "192.0.2.7", True),  # translated on the way
        ("server.lan", "192.0.2.7", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("192.0.2.7", "127.0.0.1", False),
        ("server.lan", "127.0.0.1", False),
        ("127.0.0.1", "192.0.2.7", False),
    ],
)
def test_an_array_that_listens_where_its_drives_cannot_reach_it_is_refused(
    dialled: str, listens: str, fits: bool
) -> None:
    with (
        contextlib.nullcontext() if fits else pytest.raises(EnvironmentUnfit, match=r"set host\.address to 0\.0\.0\.0")
    ):
        check_listens("left", dialled, IPv4Address(listens))


def test_where_ssh_came_from_is_where_the_host_is(bench: Bench) -> None:
    path = bench.folder / "drives.yaml"
    path.write_text(path.read_text().replace("defaults: {host_address: 127.0.0.1}\n", ""))
    engine = bench.engine(address="0.0.0.0")
    with pytest.raises(EnvironmentUnfit, match="left: how it reaches this machine is not known"):
        engine.surroundings(bench.config.list_devices()[0])

    def connect(drive: DriveEntry, deadline: Deadline) -> contextlib.closing[Shell]:
        seen = {"PATH": "/usr/bin:/bin", "SSH_CONNECTION": "192.0.2.7 4711 192.0.2.8 22"}
        return contextlib.closing(LocalShell(drive, seen))

    engine = RemoteEngine(bench.config, "here", connect)
    assert engine.surroundings(bench.config.list_devices()[0])[:2] == ("wall", "192.0.2.7")


@pytest.mark.parametrize("real", [False, True])
def test_what_a_deployments_authority_issues_for_one_up_does_not_last(bench: Bench, real: bool) -> None:
    bench.engine()
    groups = [
        {"profile": "newport", "engine": "native"},
        {"profile": "newport", "engine": "remote", "drives": ["left"]},
    ]
    content = {"name": "lab", "engine": "native", "devices": groups if real else groups[:1]}
    inventory = {"inventory": str(bench.folder / "drives.yaml")} if real else {}
    config = ArrayConfig.model_validate(content | inventory)
    device = next(device for device in config.list_devices() if device.engine != "remote")
    request = ArrayRequest(config, DEFAULT_DATA, 0)
    identity = _identity(Authority("lab"), device, request, Surroundings("modelled", "127.0.0.1"), 1, 1)
    ends = x509.load_pem_x509_certificate(identity.certificate_pem.encode()).not_valid_after_utc
    lasts = ends - datetime.datetime.now(datetime.UTC)
    assert lasts <= LENT_LIFETIME if real else lasts > 10 * LENT_LIFETIME
    assert lasts > LENT_LIFETIME - datetime.timedelta(days=1)
