"""A board for tests: OpenSSH's own server on loopback, with facts of a board in files, and stand-ins for some commands.

What is real: SSH, the shell, its tools and files. What is not: the cores are this machine's, and `uname`, `taskset` and
the files of /proc and /sys are made for the test. What `taskset` runs is up to the test: see `RUN_ARM` and `stand_in`.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from csd_emu.engines.remote.inventory import DriveEntry
from csd_lab.fidelity.benchmark_programs import LOOP_BYTES, LOOPS, RANDOM_READS
from csd_lab.fidelity.board_session import find_board
from csd_lab.fidelity.published_boards import MemoryBoard
from tests.support.drives import LOOPBACK, Sshd, make_key

QEMU_USER = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
# Runs programs for 64-bit ARM by QEMU's user mode, all else as it is.
RUN_ARM = f"""shift 2
[ "$(head -c 4 "$1" 2>/dev/null | tail -c 3)" != ELF ] || exec {QEMU_USER} "$@"
exec "$@"
"""
_CORES = ("0xd08", "0xd03", "0xd03", "0xd08")
_MEGAHERTZ_ADDITIONS = 4_000_000


def stand_in(board: MemoryBoard, then: str = "") -> str:
    """Return a script that says what a published board takes for the loops over memory, and what it does then."""
    base = {16: 2.0, 32: 2.0} | {size: 2.0 + time for size, time in board.random_read_nanoseconds.items()}
    times = [(5, _MEGAHERTZ_ADDITIONS / board.clock_megahertz * 1000)]
    times += [(mark, LOOP_BYTES * 1000 / board.megabytes_per_second[name]) for mark, name in LOOPS.items()]
    times += [(4, time * RANDOM_READS) for time in base.values()]
    lines = "".join(f"echo {mark} {round(nanoseconds)}\n" for mark, nanoseconds in times)
    return f'[ "$3" != true ] || exit 0\n{lines}{then}\n'


class TestBoard:
    """A board that listens while the block of `running` runs.

    Attributes:
        folder: of all its files; temporary folders of its commands lie there too.
        root: what is in front of /proc and /sys.
    """

    __test__ = False

    def __init__(self, folder: Path, taskset: str) -> None:
        """Make keys and facts; `taskset` is the script of that command."""
        self.folder, self.root = folder, folder / "root"
        self._commands = folder / "bin"
        self._commands.mkdir(parents=True)
        self.command("uname", 'case $1 in -m) echo aarch64;; *) exec /bin/uname "$@";; esac')
        self.command("taskset", taskset)
        self.write("proc/device-tree/model", "Test Board\0")
        self.write("proc/meminfo", "MemTotal:    1000000 kB\n")
        lines = "processor\t: {}\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: {}\n\n"
        self.write("proc/cpuinfo", "".join(lines.format(number, part) for number, part in enumerate(_CORES)))
        self.write("sys/class/thermal/thermal_zone0/temp", "45000\n")
        self.set_clock(1_400_000)
        self._server = Sshd(
            folder / "sshd",
            "PermitRootLogin yes",
            f"SetEnv CSD_SYSTEM_ROOT={self.root} TMPDIR={folder}",
            f'ForceCommand PATH={self._commands}:$PATH exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"',
        )
        self._server.let_in(make_key(folder / "key"))
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(self._server.known_line())
        self.ssh_config = folder / "ssh_config"
        self.ssh_config.write_text(
            f"IdentityFile {folder}/key\nIdentitiesOnly yes\nIdentityAgent none\n"
            f"UserKnownHostsFile {self.known_hosts}\n"
        )

    @property
    def target(self) -> str:
        """What `--on` is given."""
        return f"{LOOPBACK}:{self._server.port}"

    @property
    def entry(self) -> DriveEntry:
        """How it is reached."""
        return find_board(self.target, self.ssh_config)

    @property
    def left_over(self) -> list[Path]:
        """Temporary folders that are there."""
        return list(self.folder.glob("csd-fidelity.*"))

    @contextlib.contextmanager
    def running(self) -> Iterator[TestBoard]:
        """Listen while the block runs."""
        with self._server.running():
            yield self

    def command(self, name: str, script: str) -> None:
        """Put a command before the system's."""
        path = self._commands / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def write(self, path: str, text: str) -> None:
        """Write a file of /proc or /sys."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def set_clock(self, khz: int) -> None:
        """Set the clock that the system tells of the core that is measured."""
        self.write("sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq", f"{khz}\n")
        self.write("sys/devices/system/cpu/cpu2/cpufreq/cpuinfo_max_freq", "1400000\n")
