"""The container of the drives: libvirt's daemon, the virtual machines, and their way to the host."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from functools import partial

import psutil

from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import EnvironmentUnfit
from host.app.array_actions import ArrayStatus
from host.app.foreground import keep_up, print_change
from host.app.image_actions import import_image
from host.app.stack.container_memory import check_memory, limit_bytes
from host.app.stack.stack_settings import DRIVES_PORT, StackSettings
from host.config.job_file import read_job
from host.core.console import console
from host.fleet.array_state import ArrayBusy, array_folder
from host.fleet.foreground_lock import is_present
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
        import_image(paths, settings.image, progress)
    _forget_daemon(paths)
    _wait_for_run(name, paths)
    keep_up(request, paths, progress, _say_up, print_change, partial(relay, settings.host, DRIVES_PORT))


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
    program = shutil.which(RELAY)
    if program is None:
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
