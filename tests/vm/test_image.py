"""The ARM image itself: what a user finds who logs in, and what the check boot refuses."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from csd_emu.image import Image, ImageStore
from csd_emu.image.boot_check import Bootable, check_boot
from csd_emu.image.image_recipe import image_folder, load_recipe
from csd_emu.image.initramfs import Entry, KeyPair, boot_entries, check_entries, key_entries, write_initramfs
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_emu.util.qemu_tools import find_qemu
from firmware_agent.common.errors import ImageError

pytestmark = [pytest.mark.vm, pytest.mark.long]

BOOT_SECONDS = 300.0


@pytest.fixture(scope="module")
def store() -> ImageStore:
    return ImageStore(Paths.default().cache / "images")


@pytest.fixture(scope="module")
def image(store: ImageStore) -> Image:
    return store.ensure(Silent())


@pytest.fixture(scope="module")
def port(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The host's port behind which sshd of a booted drive listens."""
    folder = tmp_path_factory.mktemp("drive")
    tools = find_qemu()
    port = free_port()
    command = [
        *(tools.emulator, "-machine", f"{tools.machine},gic-version=2", "-cpu", "cortex-a53", "-m", "1G"),
        *("-accel", "tcg", "-icount", "shift=0,sleep=on", "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-serial", f"file:{folder}/console.log"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", image.cmdline),
        *(
            "-drive",
            f"if=none,id=root,format=raw,snapshot=on,file={image.disk}",
            "-device",
            "virtio-blk-pci,drive=root",
        ),
        *("-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{port}-:22", "-device", "virtio-net-pci,netdev=net"),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as machine:
        try:
            wait_for_shell(image, port, Deadline(BOOT_SECONDS))
            yield port
        finally:
            machine.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def shell(image: Image, port: int, command: str) -> subprocess.CompletedProcess[str]:
    options = ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ConnectTimeout=60"]
    ssh = ["ssh", "-q", "-i", str(image.ssh_key), "-p", str(port), *(f"-o{option}" for option in options)]
    return subprocess.run([*ssh, "root@127.0.0.1", command], capture_output=True, text=True, check=False, timeout=300)


def wait_for_shell(image: Image, port: int, deadline: Deadline) -> None:
    pause = threading.Event()
    while shell(image, port, "true").returncode != 0:
        # The forwarded port accepts connections before the guest listens.
        pause.wait(0.5)
        assert not deadline.expired, "sshd did not answer"


def test_the_stored_image_is_whole(store: ImageStore, image: Image) -> None:
    store.verify(image, contents=True)


def test_the_system_runs_without_a_failed_unit(image: Image, port: int) -> None:
    done = shell(image, port, "systemctl is-system-running --wait; systemctl list-units --failed --no-legend")
    assert done.stdout.strip() == "running"


def test_only_what_a_drive_needs_is_running(image: Image, port: int) -> None:
    done = shell(image, port, "systemctl list-units --type=service,timer --state=running --plain --no-legend")
    units = {line.split()[0] for line in done.stdout.splitlines()}
    assert units == {"csd-agent.service", "ssh.service", "systemd-journald.service"}


def test_the_guests_python_is_debians_and_uses_the_bytecode(image: Image, port: int) -> None:
    program = "import sys, torch; print(sys.version_info[:2], torch.__version__, torch.__spec__.cached)"
    done = shell(image, port, f"PYTHONPATH=/opt/csd/site PYTHONDONTWRITEBYTECODE=1 python3 -c '{program}'")
    assert done.stdout.startswith("(3, 11) 2.9.1"), done.stderr
    sources = shell(
        image,
        port,
        "cd /opt/csd; for f in $(find firmware_agent site/torch/nn -name '*.py'); do "
        "test -f $(dirname $f)/__pycache__/$(basename $f .py).cpython-311.pyc || echo $f; done",
    )
    assert sources.stdout == ""


def test_everything_belongs_to_root(image: Image, port: int) -> None:
    assert shell(image, port, "find / -xdev ! -user root; find / -xdev ! -group root").stdout == ""


def test_the_agent_owns_a_cpu_controller(image: Image, port: int) -> None:
    done = shell(image, port, "cat /sys/fs/cgroup/system.slice/csd-agent.service/cgroup.controllers")
    assert "cpu" in done.stdout.split()


def test_traffic_can_be_shaped_and_no_route_leads_out(image: Image, port: int) -> None:
    command = "tc qdisc add dev lo root tbf rate 80mbit burst 64k latency 50ms && tc qdisc del dev lo root"
    assert shell(image, port, command).returncode == 0
    assert shell(image, port, "ip route show default").stdout == ""


def test_a_password_does_not_open_it(image: Image, port: int) -> None:
    options = ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "PubkeyAuthentication=no"]
    ssh = ["ssh", "-v", "-p", str(port), *(f"-o{option}" for option in options), "root@127.0.0.1", "true"]
    done = subprocess.run(ssh, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode != 0
    assert "Authentications that can continue: publickey\n" in done.stderr.replace("\r", "")


def check_initramfs(path: Path, image: Image, program: str, agent: str) -> Bootable:
    """Write an initramfs whose check runs `program` first, and whose agent is `agent`."""
    recipe = load_recipe(image_folder())
    layer = image.directory.parent / ".layers" / image.metadata["layer"]
    entries = [*boot_entries(recipe, layer), *key_entries(KeyPair.make(), KeyPair.make()), *check_entries(recipe)]
    last = entries.pop()
    assert last.path.endswith("check.py")
    entries.append(Entry(last.path, last.mode, program.encode() + b"\n" + (last.content or b"")))
    entries.append(Entry("files/opt/csd/firmware_agent/__main__.py", 0o644, agent.encode()))
    write_initramfs(path, entries)
    return Bootable(image.disk, image.kernel, path, image.cmdline)


def test_an_illegal_instruction_fails_the_check(image: Image, tmp_path: Path) -> None:
    # What a torch wheel for newer cores does on a Cortex-A53: here a load that only later ones have (LDADD).
    program = (
        "import ctypes, mmap\n"
        "code = mmap.mmap(-1, 4096, prot=7)\n"
        "code.write((0xB8200000).to_bytes(4, 'little') + (0xD65F03C0).to_bytes(4, 'little'))\n"
        "ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(code)))(None)\n"
    )
    bootable = check_initramfs(tmp_path / "initrd.img", image, program, "")
    with pytest.raises(ImageError, match=r"could not be checked \(.*Fatal Python error: Illegal instruction"):
        check_boot(bootable, threading.Event())


def test_an_agent_that_ends_fails_the_check(image: Image, tmp_path: Path) -> None:
    agent = "raise SystemExit('the agent does not feel well')"
    bootable = check_initramfs(tmp_path / "initrd.img", image, "", agent)
    with pytest.raises(ImageError, match=r"did not become ready(.|\n)*does not feel well"):
        check_boot(bootable, threading.Event())
