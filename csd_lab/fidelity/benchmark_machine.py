"""A virtual machine that runs one program under the core model, with nothing beside it, and ends."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from csd_emu.cycles.mark_file import CycleMark, read_marks
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.image import Image
from csd_emu.image.boot_check import Bootable, machine_command
from csd_emu.image.initramfs import Entry, archive
from firmware_agent.common.errors import CalibrationError

FOLDER = "/opt/benchmark"
_MODULES = "while read -r module; do /bin/busybox insmod /modules/$module.ko; done < /modules/order"
_INIT = f"""#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
{_MODULES}
until [ -b /dev/vda ]; do /bin/busybox sleep 0.01; done
/bin/busybox mount -t ext4 -o noatime,noinit_itable /dev/vda /root
/bin/busybox cp -a /files/. /root/
/bin/busybox mount -t proc proc /root/proc
/bin/busybox mount -t sysfs sys /root/sys
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root {FOLDER}/start
"""
_START = f"""#!/bin/sh
cd {FOLDER}
PYTHONPATH={FOLDER}/site:/opt/csd/site:/opt/csd
export PYTHONPATH
{{ %s; }} > /dev/ttyAMA0 2>&1
echo "BENCHMARK ended with $?" > /dev/ttyAMA0
busybox poweroff -f
"""
_ENDED = "BENCHMARK ended with 0"
SHOWN_CHARACTERS = 1500


def run_program(
    image: Image, plugin: CyclePlugin, command: str, files: Mapping[str, bytes], deadline_seconds: float, cores: int = 1
) -> tuple[list[CycleMark], str]:
    """Boot the drives' image, run `command` in place of its system; return its marks and what it printed.

    Args:
        image: of the drives; it stays as it is.
        plugin: the core model.
        command: of a shell, run in the folder of the files.
        files: relative path -> content.
        deadline_seconds: wall time for boot and program.
        cores: of the machine; each mark then has a line for each core, that which executed it first.

    Raises:
        CalibrationError: the program failed, or took too long; carries what it printed last.
    """
    with tempfile.TemporaryDirectory(prefix="csd-benchmark-") as name:
        initrd, marks = Path(name, "initrd"), Path(name, "marks")
        initrd.write_bytes(image.initrd.read_bytes() + archive(_entries(command, files)))
        bootable = Bootable(image.disk, image.kernel, initrd, f"{image.cmdline} rdinit=/benchmark-init")
        started = [*machine_command(bootable), "-smp", str(cores), "-plugin", plugin.options(marks)]
        try:
            done = subprocess.run(
                started, stdin=subprocess.DEVNULL, capture_output=True, timeout=deadline_seconds, check=False
            )
            shown = (done.stdout + done.stderr).decode(errors="replace")
        except subprocess.TimeoutExpired as error:
            shown = (error.stdout or b"").decode(errors="replace") + f"\n(no end after {deadline_seconds:.0f} s)"
        if _ENDED not in shown:
            raise CalibrationError(f"a benchmark failed under the core model: {shown[-SHOWN_CHARACTERS:].strip()}")
        return read_marks(marks), shown


def _entries(command: str, files: Mapping[str, bytes]) -> Iterable[Entry]:
    yield Entry("benchmark-init", 0o755, _INIT.encode())
    yield Entry(f"files{FOLDER}/start", 0o755, (_START % command).encode())
    for path, content in files.items():
        yield Entry(f"files{FOLDER}/{path}", 0o755, content)
