"""The container of the drives: libvirt's daemon, the virtual machines, and their way to the host."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import psutil

from csd_emu.image import ImageStore
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import EnvironmentUnfit
from firmware_agent.common.units import format_bytes
from host.app.array_actions import ArrayStatus, keep_up
from host.app.stack.stack_settings import DRIVES_PORT, StackSettings
from host.config.job_file import read_job
from host.core.console import console
from host.fleet.array_state import ArrayBusy, array_folder, is_present
from host.fleet.lifecycle import ArrayRequest

RELAY = "socat"
_WAIT_SECONDS, _POLL_SECONDS = 120.0, 0.5


def run_drives(settings: StackSettings, paths: Paths, progress: Progress) -> None:
    """Bring the array up and keep it up until interrupted.

    Raises:
        CsdError: it did not come up.
    """
    check_memory(settings.count, limit_bytes(), psutil.virtual_memory().available)
    request = read_request(settings)
    name = request.config.name
    if is_present(paths.presence(name)):
        raise EnvironmentUnfit(f"another container keeps array {name!r} up on this volume; end it first")
    if settings.image is not None:
        ImageStore(paths.images).read(settings.image, progress)
    _forget_daemon(paths)
    _wait_for_run(name, paths)
    keep_up(request, paths, progress, _say_up, partial(relay, settings.host, DRIVES_PORT))


def read_request(settings: StackSettings) -> ArrayRequest:
    """Return what is to be brought up: the array, with the data of the job; its model is not looked at.

    Raises:
        ConfigurationError: the job file breaks a rule.
    """
    job = read_job(settings.job_file)
    return ArrayRequest(settings.array(), job.data.resolved(job.mode), job.seed)


async def relay(host: str, port: int) -> None:
    """Hand on what the drives send to this container's loopback, under the host's name as it is at that moment.

    Raises:
        EnvironmentUnfit: the relay is missing, or has ended.
    """
    if (program := shutil.which(RELAY)) is None:
        raise EnvironmentUnfit(f"{RELAY}, which connects the drives with the host, is not installed; rebuild the image")
    ends = f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,nodelay", f"TCP:{host}:{port},nodelay"
    # Agents dial until a host listens: that none does yet is no news.
    process = await asyncio.create_subprocess_exec(program, *ends, stderr=asyncio.subprocess.DEVNULL)
    try:
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    raise EnvironmentUnfit(f"{RELAY} ended with code {code}: is port {port} of this container's loopback in use?")


def _forget_daemon(paths: Paths) -> None:
    """Remove what the libvirt daemon of a container that was killed left; it has no machines any more."""
    from csd_emu.engines.qemu.libvirt_daemon import SessionDaemon

    if not SessionDaemon(paths).answers:
        shutil.rmtree(paths.runtime / "libvirt", ignore_errors=True)


def _wait_for_run(array: str, paths: Paths) -> None:
    """Wait until the run that lost its drives, when their container was killed, has let go of the array.

    Raises:
        EnvironmentUnfit: it does not.
    """
    deadline, told = Deadline(_WAIT_SECONDS), False
    while True:
        try:
            with array_folder(paths.arrays, array):
                return
        except ArrayBusy as error:
            if deadline.expired:
                raise EnvironmentUnfit(f"{error}; restart the host's container") from error
            if not told:
                console.print("waiting for the run on the drives of before to end")
                told = True
            threading.Event().wait(_POLL_SECONDS)


def _say_up(status: ArrayStatus) -> None:
    records = sum(device.samples for device in status.devices)
    console.print(f"{len(status.devices)} drives are up and hold {records} records; they train when the host calls")


# Lower bounds: what libvirt, the template and this process hold, and what a clone that trains the smallest model
# holds beside the template's memory, which all share (bench `memory`: 140 MB before it trains).
BASE_BYTES, DRIVE_BYTES = 700 << 20, 250 << 20
# Of version 2 and version 1 of the kernel's control groups, as a container sees its own.
LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def limit_bytes(files: Iterable[Path] = LIMIT_FILES) -> int | None:
    """Return the container's limit, or None if it has none; a limit above the machine's memory is none."""
    for path in files:
        with contextlib.suppress(OSError):
            text = path.read_text(encoding="ascii").strip()
            if text.isdigit() and int(text) < psutil.virtual_memory().total:
                return int(text)
    return None


def check_memory(count: int, limit: int | None, available_bytes: int) -> None:
    """Return if `count` drives fit.

    Args:
        count: of drives.
        limit: the container's, in bytes; None for none.
        available_bytes: of the machine.

    Raises:
        EnvironmentUnfit: they do not.
    """
    needed = BASE_BYTES + count * DRIVE_BYTES
    for bound, whose, remedy in (
        (limit, "this container may use", "raise CSD_DRIVES_MEMORY, in .env"),
        (available_bytes, "this machine has free", "free some"),
    ):
        if bound is not None and needed > bound:
            raise EnvironmentUnfit(
                f"CSD_COUNT={count} drives need at least {format_bytes(needed)} of memory, {whose} "
                f"{format_bytes(bound)}; lower CSD_COUNT or {remedy}"
            )
