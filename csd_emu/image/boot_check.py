"""One boot that shows that an image works: systemd content, torch training on a Cortex-A53, the agent ready."""

from __future__ import annotations

import json
import math
import os
import re
import selectors
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csd_emu.util.deadline import Deadline
from csd_emu.util.qemu_tools import find_qemu, sandbox
from firmware_agent.common.errors import ImageError
from firmware_agent.common.handover import READY_MARKER

# A free core needs about 30 s; this only ends a boot that hangs, for a failing one ends by itself.
BOOT_DEADLINE_SECONDS = 600.0
_MEMORY = "1G"
_CHECK = "CSD-CHECK "
_READY = f"{READY_MARKER} "
_SHOWN_LINES = 12
_FATAL = re.compile(r"Fatal Python error|Kernel panic|CSD-INIT")
_POLL_SECONDS = 0.2
_REMEDY = "correct the agent or the recipe, or run `csd-emu image build --rebuild`"


@dataclass(frozen=True)
class Bootable:
    """What a machine boots: a raw disk, which stays unchanged, a kernel, an initramfs and the kernel's arguments."""

    disk: Path
    kernel: Path
    initrd: Path
    cmdline: str


def check_boot(
    bootable: Bootable, cancelled: threading.Event, deadline_seconds: float = BOOT_DEADLINE_SECONDS
) -> dict[str, Any]:
    """Boot, wait until the check and the agent have reported, end the machine, and return the check's report.

    Raises:
        EnvironmentUnfit: QEMU is not installed.
        ImageError: the boot failed; carries the last lines of the console.
    """
    process = subprocess.Popen(
        machine_command(bootable), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        console = _watch(process, Deadline(deadline_seconds), cancelled)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return judge(console)


def machine_command(bootable: Bootable) -> list[str]:
    """Return QEMU's command for a machine of one core without network, whose console is standard output.

    Raises:
        EnvironmentUnfit: QEMU is not installed.
    """
    tools = find_qemu()
    drive = f"if=none,id=root,format=raw,snapshot=on,file={str(bootable.disk).replace(',', ',,')}"
    # Should this process be killed, the kernel ends the machine too.
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    return [
        *(*guard, tools.emulator, "-machine", f"{tools.machine},gic-version=2", "-cpu", "cortex-a53", "-m", _MEMORY),
        *("-accel", "tcg", "-icount", "shift=0,sleep=on", "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-serial", "stdio", "-drive", drive, "-device", "virtio-blk-pci,drive=root"),
        *("-netdev", "hubport,id=nowhere,hubid=0", "-device", "virtio-net-pci,netdev=nowhere"),
        *sandbox(tools.emulator),
        *("-kernel", str(bootable.kernel), "-initrd", str(bootable.initrd), "-append", bootable.cmdline),
    ]


def judge(console: str) -> dict[str, Any]:
    """Return the check's report from what the console showed, if it is a good one.

    Raises:
        ImageError: the report is missing or bad, or the agent did not become ready.
    """
    lines = [line.strip() for line in console.replace("\r", "\n").split("\n") if line.strip()]
    if (report := _report(lines)) is None:
        raise _failed("torch, NumPy, gRPC, msgspec and xxhash could not be checked", lines)
    if report["system"] != "running" or report["failed_units"]:
        raise _failed(f"systemd is {report['system']}, failed units: {report['failed_units'] or 'none'}", lines)
    if not (math.isfinite(report["gradient_norm"]) and report["gradient_norm"] > 0):
        raise _failed(f"a convolution's gradient has length {report['gradient_norm']}", lines)
    if not any(_READY in line for line in lines):
        raise _failed("the agent did not become ready", lines)
    return report


def _report(lines: list[str]) -> dict[str, Any] | None:
    texts = [line.partition(_CHECK)[2] for line in lines if _CHECK in line]
    try:
        report: dict[str, Any] = json.loads(texts[-1])
    except (IndexError, ValueError):
        return None
    return report if report.keys() >= {"system", "failed_units", "gradient_norm"} else None


def _failed(why: str, lines: list[str]) -> ImageError:
    last = "\n  ".join(lines[-_SHOWN_LINES:]) or "(nothing)"
    fatal = next((line for line in lines if _FATAL.search(line)), None)
    why = f"{why} ({fatal})" if fatal else why
    return ImageError(f"the ARM image fails its check boot: {why}; {_REMEDY}; the console's last lines:\n  {last}")


def _watch(process: subprocess.Popen[bytes], deadline: Deadline, cancelled: threading.Event) -> str:
    """Return what the console showed until the agent is ready, the machine ends or the deadline passes."""
    shown = b""
    with selectors.DefaultSelector() as selector:
        if process.stdout is None:  # pragma: no cover - it was asked for
            return ""
        selector.register(process.stdout, selectors.EVENT_READ)
        while not deadline.expired:
            if cancelled.is_set():
                raise ImageError("the image build was cancelled; run it again, what was downloaded is kept")
            if not selector.select(min(_POLL_SECONDS, deadline.left_seconds)):
                continue
            piece = os.read(process.stdout.fileno(), 65536)
            shown += piece
            # A line is complete only with the one after it, or its end.
            if not piece or (_READY.encode() in shown and b"\n" in shown.partition(_READY.encode())[2]):
                return shown.decode(errors="replace")
    return shown.decode(errors="replace") + f"\n(no end after {deadline.seconds:.0f} s)"
