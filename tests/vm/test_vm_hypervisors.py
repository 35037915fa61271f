"""Drives on hypervisors of which nothing but libvirt is known: daemons of their own stand in for other machines."""

import contextlib
import getpass
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import libvirt
import pytest

from csd_emu.engines.qemu.connection import open_hypervisor
from csd_emu.engines.qemu.remote_hypervisor import read_qemu
from csd_emu.engines.qemu.remote_template import RemoteTemplates
from csd_emu.engines.qemu.storage_pool import Pool
from csd_emu.engines.qemu.volume_transfer import CHUNK_BYTES, Digests
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import DeviceError, EnvironmentUnfit
from host.fleet.certificates import Authority
from tests.support.commands import ARRAY, temporary_workshop, wait_until
from tests.support.drives import Sshd, make_key
from tests.support.hypervisors import Hypervisor, hypervisors, needs_storage
from tests.support.loopback import needs_sshd
from tests.support.machines import DAEMON_OUTLIVES
from tests.vm.conftest import NAME, ROUND_SECONDS, VmWorkshop

pytestmark = [pytest.mark.vm, pytest.mark.filterwarnings(DAEMON_OUTLIVES), needs_storage]
_TEMPLATE_SECONDS = 600.0


class RackWorkshop(VmWorkshop):
    """A workshop whose array is placed on two hypervisors."""

    def place(self, racks: list[Hypervisor], **changes: object) -> None:
        """Write the array file, with changes."""
        entries = [rack.entry(f"rack-{number}") for number, rack in enumerate(racks)]
        self.array = self.write(
            "array.yaml", ARRAY | {"name": NAME, "engine": "qemu", "hypervisors": entries, "spread": "even"} | changes
        )


@pytest.fixture(scope="module")
def racks(template: None) -> Iterator[list[Hypervisor]]:
    """Two hypervisors, with whatever earlier tests left in their caches.

    A folder in CSD_TEST_POOLS keeps image and templates, for those who run these tests again and again.
    """
    with hypervisors(2, os.environ.get("CSD_TEST_POOLS")) as racks:
        yield racks


@pytest.fixture
def placed(racks: list[Hypervisor]) -> Iterator[RackWorkshop]:
    """The workshop of an array on both; nothing of the array is left there afterwards."""
    with temporary_workshop(RackWorkshop) as workshop:
        workshop.place(racks)
        try:
            yield workshop
        finally:
            for rack in racks:
                if not rack.answers():
                    rack.start()
            swept = workshop.run("clean", "--array", workshop.array)
            assert swept.code == 0, swept.err
        assert_nothing_of_an_array(racks)


@pytest.fixture
def start(placed: RackWorkshop) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """What starts a command that has ended when the test has."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path) -> subprocess.Popen[str]:
        started.append(placed.start(*arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def rack() -> Iterator[Hypervisor]:
    """A hypervisor for one test, with nothing on it."""
    with hypervisors(1) as (rack,):
        yield rack


def assert_nothing_of_an_array(racks: list[Hypervisor]) -> None:
    for rack in racks:
        assert rack.machines() == []
        assert rack.files("csd.") == []


def cached(racks: list[Hypervisor]) -> dict[Path, tuple[int, int]]:
    """Inode and time of change of everything that is kept for later runs."""
    paths = [rack.pool / name for rack in racks for name in rack.files()]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def test_a_plan_shows_the_placement_and_starts_nothing(placed: RackWorkshop, racks: list[Hypervisor]) -> None:
    before = cached(racks)
    done = placed.run("up", placed.array, "--plan", "--json")
    assert done.code == 0, done.err
    report = done.json("up-plan")
    assert [(each["name"], each["devices"]) for each in report["hypervisors"]] == [
        ("rack-0", ["csd-00"]),
        ("rack-1", ["csd-01"]),
    ]
    assert report["homeless"] == {}
    assert cached(racks) == before
    assert_nothing_of_an_array(racks)


def test_what_does_not_fit_is_said_before_anything_is_sent(placed: RackWorkshop, racks: list[Hypervisor]) -> None:
    before = cached(racks)
    entries = [rack.entry(f"rack-{number}", memory="1 GiB", cores=1) for number, rack in enumerate(racks)]
    placed.place(racks, hypervisors=entries, devices=[{"profile": "newport", "count": 4}])
    for arguments in (["up", placed.array], ["up", placed.array, "--plan"]):
        done = placed.run(*arguments)
        assert done.code == 2
        assert "2 of 4 drives have no room: rack-0 has 1 cores for 1 drives, 2 too few" in done.err
    assert cached(racks) == before
    assert_nothing_of_an_array(racks)


@pytest.mark.long
def test_a_hypervisor_that_dies_costs_its_own_drives_and_nothing_is_left(
    placed: RackWorkshop, racks: list[Hypervisor], start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start(*placed.job_arguments(rounds=500, epochs=1, batch_size=64, target={"accuracy": 1.0}))
    wait_until(lambda: len(placed.rounds()) >= 1 or process.poll() is not None, seconds=_TEMPLATE_SECONDS)
    assert placed.rounds(), process.communicate()[1]
    assert [part["device"] for part in placed.rounds()[0]["devices"]] == ["csd-00", "csd-01"]
    assert [len(rack.machines()) for rack in racks] == [1, 1]
    racks[1].kill()

    def goes_on() -> bool:
        last = placed.rounds()[-2:]
        return all([part["device"] for part in record["devices"]] == ["csd-00"] for record in last)

    wait_until(goes_on, seconds=ROUND_SECONDS)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "hypervisor rack-1" in err
    # The one that lives is clean; the dead one's files are found when it is back, without any state.
    assert racks[0].machines() == []
    assert racks[0].files("csd.") == []
    assert racks[1].files("csd.") != []
    racks[1].start()
    swept = placed.run("clean", "--array", placed.array)
    assert swept.code == 0, swept.err
    assert_nothing_of_an_array(racks)


@pytest.mark.long
def test_image_and_template_travel_once_and_a_damaged_one_is_sent_again(
    placed: RackWorkshop, racks: list[Hypervisor]
) -> None:
    first = placed.run("up", placed.array, "--json", seconds=_TEMPLATE_SECONDS)
    assert first.code == 0, first.err
    assert placed.run("down", NAME).code == 0
    before = cached(racks)
    up = placed.run("up", placed.array, seconds=300)
    assert up.code == 0, up.err
    assert "send " not in up.err
    assert "boot the template" not in up.err
    assert placed.run("down", NAME).code == 0
    assert cached(racks) == before
    disk = next(path for path in before if path.name.endswith(".disk") and path.parent == racks[0].pool)
    with disk.open("r+b") as file:
        file.seek(3 * CHUNK_BYTES + 4096)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    up = placed.run("up", placed.array, seconds=300)
    assert up.code == 0, up.err
    assert up.err.count("rack-0: send disk.img") == 1
    assert "rack-1: send" not in up.err
    with disk.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() in disk.name
    assert placed.run("down", NAME).code == 0


@pytest.mark.long
def test_a_hypervisor_that_is_gone_before_the_start_costs_its_own_drives(
    placed: RackWorkshop, racks: list[Hypervisor]
) -> None:
    """With the room that the file gives the other, not all drives fit on it."""
    entries = [rack.entry(f"rack-{number}", cores=1) for number, rack in enumerate(racks)]
    placed.place(racks, hypervisors=entries)
    racks[1].kill()
    up = placed.run("up", placed.array, "--json", seconds=_TEMPLATE_SECONDS)
    assert up.code == 0, up.err
    states = {device["name"]: device["state"] for device in up.json("up")["devices"]}
    assert states == {"csd-00": "running", "csd-01": "gone"}
    assert "csd-01: hypervisor rack-1 cannot be used" in up.err
    racks[1].start()
    revived = placed.run("inject", NAME, "csd-01", "revive", seconds=_TEMPLATE_SECONDS)
    assert revived.code == 0, revived.err
    assert [len(rack.machines()) for rack in racks] == [1, 1]
    down = placed.run("down", NAME, "--json")
    assert down.json("down")["ended"] == {NAME: ["csd-00", "csd-01"]}


@pytest.mark.long
def test_two_arrays_on_the_same_hypervisors_are_not_in_each_others_way(
    placed: RackWorkshop, racks: list[Hypervisor], start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Both start at once, where there is neither image nor template; each ends by itself."""
    placed.place(racks, name=f"{NAME}-b")
    other = placed.array.rename(placed.array.with_name("other.yaml"))
    placed.place(racks)
    starting = [start("up", path, "--json") for path in (placed.array, other)]
    try:
        for process in starting:
            out, err = process.communicate(timeout=_TEMPLATE_SECONDS)
            assert process.returncode == 0, err
            assert [device["state"] for device in json.loads(out)["devices"]] == ["running", "running"], err
        assert [len(rack.machines()) for rack in racks] == [2, 2]
        assert placed.run("down", NAME).code == 0
        assert [len(rack.machines()) for rack in racks] == [1, 1]
        assert all(rack.files("csd.") for rack in racks)
        assert placed.run("down", f"{NAME}-b").code == 0
        assert_nothing_of_an_array(racks)
    finally:
        placed.run("clean", "--array", other)


def test_an_upload_that_is_cut_goes_on_where_it_was_cut(rack: Hypervisor, tmp_path: Path) -> None:
    source, chunks = tmp_path / "source", 12
    source.write_bytes(random.Random(0).randbytes(chunks * CHUNK_BYTES))
    digests = Digests.of(source)
    pool = Pool.open(open_hypervisor(rack.uri), str(rack.pool))

    def cut(fraction: float) -> None:
        if fraction >= 0.5:
            rack.kill_daemon()

    with pytest.raises(libvirt.libvirtError):
        pool.bring("volume", source, digests, cut)
    rack.start()
    pool = Pool.open(open_hypervisor(rack.uri), str(rack.pool))
    assert not pool.holds("volume", digests.sha256)
    sent = pool.bring("volume", source, digests, lambda _: None)
    assert sent.sent_bytes == (chunks // 2) * CHUNK_BYTES
    assert pool.holds("volume", digests.sha256)
    assert (rack.pool / "volume").read_bytes() == source.read_bytes()


@pytest.mark.long
def test_a_hypervisor_that_stops_answering_in_a_transfer_is_given_up(rack: Hypervisor, tmp_path: Path) -> None:
    """Its socket is open and takes bytes: libvirt's keepalive finds out, after 20 seconds."""
    source = tmp_path / "source"
    source.write_bytes(random.Random(4).randbytes(4 * CHUNK_BYTES))
    digests = Digests.of(source)
    connection = open_hypervisor(rack.uri)
    pool = Pool.open(connection, str(rack.pool))
    with pytest.raises(libvirt.libvirtError, match="keepalive timeout"):
        pool.bring("volume", source, digests, lambda fraction: rack.process.suspend() if fraction >= 0.5 else None)
    assert not connection.isAlive()
    rack.process.resume()
    pool = Pool.open(open_hypervisor(rack.uri), str(rack.pool))
    assert pool.bring("volume", source, digests, lambda _: None).sent_bytes == 2 * CHUNK_BYTES


def test_a_damaged_volume_is_found_and_its_damaged_piece_alone_is_sent_again(rack: Hypervisor, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(random.Random(1).randbytes(3 * CHUNK_BYTES + 5))
    digests = Digests.of(source)
    pool = Pool.open(open_hypervisor(rack.uri), str(rack.pool))
    assert pool.bring("volume", source, digests, lambda _: None).sent_bytes == digests.size_bytes
    assert pool.holds("volume", digests.sha256)
    with (rack.pool / "volume").open("r+b") as file:
        file.seek(CHUNK_BYTES + 7)
        file.write(b"damaged")
    assert not pool.holds("volume", digests.sha256)
    assert pool.bring("volume", source, digests, lambda _: None).sent_bytes == CHUNK_BYTES
    assert (rack.pool / "volume").read_bytes() == source.read_bytes()


def test_runs_that_send_the_same_file_at_once_are_not_in_each_others_way(rack: Hypervisor, tmp_path: Path) -> None:
    source, runs = tmp_path / "source", 3
    source.write_bytes(random.Random(3).randbytes(16 * CHUNK_BYTES))
    digests = Digests.of(source)
    Pool.open(open_hypervisor(rack.uri), str(rack.pool))
    meeting = threading.Barrier(runs)

    def send() -> None:
        pool = Pool.open(open_hypervisor(rack.uri), str(rack.pool))
        meeting.wait()
        pool.bring("volume", source, digests, lambda _: None)

    with ThreadPoolExecutor(runs) as threads:
        for done in [threads.submit(send) for _ in range(runs)]:
            done.result()
    assert (rack.pool / "volume").read_bytes() == source.read_bytes()
    pool = Pool.open(open_hypervisor(rack.uri), str(rack.pool))
    assert pool.holds("volume", digests.sha256) or pool.bring("volume", source, digests, lambda _: None).sent_bytes == 0
    assert pool.holds("volume", digests.sha256)


def test_what_a_template_left_is_removed_once_it_is_old_by_the_clock_there(rack: Hypervisor) -> None:
    connection = open_hypervisor(rack.uri)
    pool = Pool.open(connection, str(rack.pool))
    templates = RemoteTemplates(pool, read_qemu(connection.getCapabilities()), 1 << 30)
    image = {kind: f"csd-image.{kind}" for kind in ("disk", "kernel", "initrd")}

    def fail() -> list[str]:
        """Make a template of an image that is not there."""
        with pytest.raises(DeviceError, match="was removed there"):
            templates.ensure(connection, image, "", Silent())
        Pool.open(connection, str(rack.pool))
        return rack.files("csd-template.")

    assert fail() == []
    key = templates._key(image, "")
    begun = [pool.make(f"csd-template.{key}.{token}.ram", 1).modified for token in ("old", "new")]
    moment = float(begun[0])
    os.utime(rack.pool / f"csd-template.{key}.old.ram", (moment - 7200, moment - 7200))
    assert fail() == [f"csd-template.{key}.new.ram"]


# What OpenBSD's nc -U does: libvirt's own helper at the other end takes no socket but the user's usual one.
_NETCAT = """\
import os, socket, sys, threading
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[-1])
def up():
    while data := os.read(0, 65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := peer.recv(65536):
    os.write(1, data)
"""


@needs_sshd
def test_over_ssh_a_file_arrives_and_strangers_are_not_let_in(rack: Hypervisor, tmp_path: Path) -> None:
    netcat = tmp_path / "nc"
    netcat.write_text(f"#!{sys.executable}\n{_NETCAT}")
    server = Sshd(tmp_path / "sshd", "PermitRootLogin yes")
    key, stranger = make_key(tmp_path / "key"), make_key(tmp_path / "stranger")
    server.let_in(key)
    (tmp_path / "known_hosts").write_text(server.known_line())
    client = tmp_path / "ssh"
    options = f"-o UserKnownHostsFile={tmp_path}/known_hosts -o IdentitiesOnly=yes"
    client.write_text(f'#!/bin/sh\nexec ssh {options} "$@"\n')
    for program in (netcat, client):
        program.chmod(0o755)
    way = f"socket={rack.socket}&proxy=netcat&netcat={netcat}&command={client}"
    uri = f"qemu+ssh://{getpass.getuser()}@127.0.0.1:{server.port}/session?{way}&keyfile="
    with server.running():
        with pytest.raises(EnvironmentUnfit, match="Permission denied"):
            open_hypervisor(f"{uri}{stranger}")
        source = tmp_path / "source"
        source.write_bytes(random.Random(2).randbytes(2 * CHUNK_BYTES))
        digests = Digests.of(source)
        with contextlib.closing(open_hypervisor(f"{uri}{key}")) as connection:
            pool = Pool.open(connection, str(rack.pool))
            assert pool.bring("volume", source, digests, lambda _: None).sent_bytes == digests.size_bytes
            assert pool.holds("volume", digests.sha256)
        assert (rack.pool / "volume").read_bytes() == source.read_bytes()


def test_over_tls_a_file_arrives_and_strangers_are_not_let_in(rack: Hypervisor, tmp_path: Path) -> None:
    port = rack.listen(ours := Authority("ours"))
    rack.kill_daemon()
    rack.start()
    for authority in (ours, Authority("strangers")):
        # A stranger trusts the server, but the server does not know who signed for the stranger.
        client, folder = authority.issue_device("client"), tmp_path / ("ours" if authority is ours else "strange")
        folder.mkdir()
        (folder / "cacert.pem").write_text(ours.ca_pem)
        (folder / "clientcert.pem").write_text(client.certificate_pem)
        (folder / "clientkey.pem").write_text(client.key_pem)
    uri = f"qemu+tls://localhost:{port}/session?pkipath={tmp_path}"
    with pytest.raises(EnvironmentUnfit, match="cannot be reached"):
        open_hypervisor(f"{uri}/strange")
    source = tmp_path / "source"
    source.write_bytes(random.Random(5).randbytes(2 * CHUNK_BYTES))
    digests = Digests.of(source)
    with contextlib.closing(open_hypervisor(f"{uri}/ours")) as connection:
        pool = Pool.open(connection, str(rack.pool))
        assert pool.bring("volume", source, digests, lambda _: None).sent_bytes == digests.size_bytes
    assert (rack.pool / "volume").read_bytes() == source.read_bytes()
