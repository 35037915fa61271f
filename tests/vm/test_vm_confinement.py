"""What a model in a virtual machine, as root there, reaches: its host's port; and what others reach of the machine."""

import asyncio
import contextlib
import json
import os
import pwd
import re
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from csd_emu.engines.qemu.libvirt_daemon import SERVICE_USER
from csd_emu.engines.qemu.qemu_monitor import KEPT_BYTES
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DeviceFailed
from firmware_agent.common.frames.session_frames import Ready
from host.fleet.device_session import DeviceSession
from tests.contract.laboratory import Laboratory
from tests.support.fakes import JOB
from tests.support.machines import DAEMON_OUTLIVES
from tests.vm.conftest import qemu_processes

pytestmark = [pytest.mark.vm, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]

# As a user's model file: it tries what it is given, and says who let it in in place of building a model.
CANARY = """
import json, os, socket

def build(targets):
    found = {"uid": os.getuid(), "interfaces": sorted(os.listdir("/sys/class/net")), "in": {}, "out": 0}
    for address, port in json.loads(targets):
        key = f"{address}:{port}"
        try:
            with socket.create_connection((address, port), 2.0) as line:
                line.settimeout(2.0)
                found["in"][key] = line.recv(64).decode(errors="replace")
        except OSError:
            found["out"] += 1
    for server in ("10.0.2.3", "1.1.1.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.settimeout(2.0)
            try:
                asked.sendto(bytes.fromhex("abcd01000001000000000000076578616d706c6503636f6d0000010001"), (server, 53))
                found["in"][f"dns {server}"] = asked.recv(512).hex()
            except OSError:
                found["out"] += 1
    raise RuntimeError("CANARY" + json.dumps(found))
"""
# It talks to its console, and says so in place of building a model.
CHATTER = """
def build(lines):
    with open("/dev/console", "w") as console:
        for number in range(lines):
            console.write(f"chatter {number:08} " + 80 * "x" + chr(10))
    raise RuntimeError("CHATTERED")
"""
SECRET = b"secret of a service on the host\n"


class Service:
    """A service of this machine, on all of its addresses, that tells its secret to whoever connects."""

    def __init__(self) -> None:
        self.visitors: list[Any] = []
        self._listening = socket.create_server(("0.0.0.0", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, address = self._listening.accept()
                self.visitors.append(address)
                with connection:
                    connection.sendall(SECRET)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def service() -> Iterator[Service]:
    with contextlib.closing(Service()) as service:
        with socket.create_connection(("127.0.0.1", service.port), 5.0) as line:  # it does answer
            assert line.recv(64) == SECRET
        service.visitors.clear()
        yield service


def own_addresses() -> list[str]:
    """This machine's addresses but for the loopback's."""
    found = [each.address for card in psutil.net_if_addrs().values() for each in card if each.family == socket.AF_INET]
    return [address for address in found if not address.startswith("127.")]


async def sing(session: DeviceSession, targets: list[tuple[str, int]]) -> dict[str, Any]:
    """Have the model in a drive try `targets`, and return what it says."""
    job = msgspec.structs.replace(
        JOB, model="canary.py:build", source=CANARY, arguments={"targets": json.dumps(targets)}
    )
    await session.send(job)
    with pytest.raises(DeviceFailed, match="CANARY") as failed:
        await session.expect(Ready, Deadline(600.0))
    found = re.search(r"CANARY(\{.*\})", str(failed.value))
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


async def test_a_model_reaches_its_hosts_port_for_drives_and_nothing_else(lab: Laboratory, service: Service) -> None:
    async with lab.fleet() as fleet:
        handles = [await asyncio.to_thread(lab.engine.start, lab.plan(number, fleet.port)) for number in (0, 1)]
        for handle in handles:
            await lab.ready(handle, fleet)
        session = fleet.session("csd-00")
        assert session is not None
        hosts = ["10.0.2.2", "10.0.2.4", "10.0.2.15", "127.0.0.1", *own_addresses(), "192.0.2.1", "1.1.1.1"]
        targets = [(host, port) for host in hosts for port in (service.port, 22, 80)]
        # The port for drives, where it is not looked for: a network that QEMU might still have would lead there.
        targets += [("10.0.2.2", fleet.port), *((host, fleet.port) for host in own_addresses())]
        found = await sing(session, targets)
        assert found["uid"] == 0
        assert found["interfaces"] == ["eth0", "lo"]
        # What the drive itself listens on: its SSH server, on its own loopback and its own card.
        assert set(found["in"]) <= {"127.0.0.1:22", "10.0.2.15:22"}
        assert len(found["in"]) + found["out"] == len(targets) + 2
        assert service.visitors == []
        await session.send(JOB)
        assert isinstance(await session.expect(Ready, Deadline(300.0)), Ready)  # it is no worse for it


async def test_however_much_a_drive_says_its_console_stays_small(lab: Laboratory) -> None:
    async with lab.fleet() as fleet:
        handle = await asyncio.to_thread(lab.engine.start, lab.plan(0, fleet.port))
        await lab.ready(handle, fleet)
        session = fleet.session("csd-00")
        assert session is not None
        lines = 12_000  # 1.2 MB
        job = msgspec.structs.replace(JOB, model="chatter.py:build", source=CHATTER, arguments={"lines": lines})
        await session.send(job)
        failure = asyncio.ensure_future(session.expect(Ready, Deadline(600.0)))
        while not failure.done():
            assert await asyncio.to_thread(lab.engine.alive, handle)  # fetches the console on the way
            assert handle.plan.console.stat().st_size <= 2 * KEPT_BYTES
            await asyncio.wait({failure}, timeout=0.2)
        with pytest.raises(DeviceFailed, match="CHATTERED"):
            failure.result()
        await asyncio.to_thread(lab.engine.alive, handle)
        assert handle.plan.console.stat().st_size <= 2 * KEPT_BYTES
        assert f"chatter {lines - 1:08}" in handle.plan.console.read_text()


async def test_files_of_drives_and_templates_are_closed_to_others(lab: Laboratory) -> None:
    async with lab.fleet() as fleet:
        handle = await asyncio.to_thread(lab.engine.start, lab.plan(0, fleet.port))
        await lab.ready(handle, fleet)
        plan, me, root = handle.plan, os.geteuid(), os.geteuid() == 0
        folder = plan.folder.stat()
        assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (me, 0o710 if root else 0o700)
        for path in (plan.folder / "disk.qcow2", plan.shard, plan.identity):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        (process,) = (
            each for each in qemu_processes() if f"guest={handle.reference}," in " ".join(each.info["cmdline"])
        )
        line = process.info["cmdline"]
        assert "spawn=deny" in line[line.index("-sandbox") + 1]
        assert process.uids().effective == (pwd.getpwnam(SERVICE_USER).pw_uid if root else me)
        (ram,) = re.findall(r"mem-path=([^,]+)", " ".join(line))
        for path in Path(ram).parent.iterdir():
            assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (me, 0o444)
        assert stat.S_IMODE(Path(ram).parent.stat().st_mode) == 0o511
        # The only socket that leads anywhere: to the host's port.
        ends = {each.raddr.port for each in process.net_connections("tcp") if each.raddr}
        assert ends == {fleet.port}
