"""`csd-emu up`, `down`, `status` and `sweep`; after `up --stay` an array lives as long as a foreground process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.config.array_file import QEMU, REMOTE, ArrayConfig
from csd_emu.config.engine_names import AS_IN_FILE, ENGINE, ArrayChanges
from csd_emu.engines import Engine, make_engine
from csd_emu.engines.qemu.vm_scheduling import VmScheduleReport
from csd_emu.util.config_files import parse_config
from csd_emu.util.node_names import MAX_COUNTERS, counter_array
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.config.array_files import read_array
from host.config.job_file import DEFAULT_DATA
from host.config.resolve import resolve_run
from host.core.console import console
from host.core.interrupts import INTERRUPTS
from host.fleet.array_state import STATE_FILE, ArrayBusy, ArrayState, array_folder, present
from host.fleet.fleet import check_port
from host.fleet.lifecycle import ArrayRequest, clear_array, list_running, start_array


class DeviceStatus(msgspec.Struct, frozen=True):
    """One device in `csd-emu status`; `state` is ``running`` or ``gone``."""

    name: str
    profile: str
    state: str
    samples: int
    incarnation: int


class ArrayStatus(msgspec.Struct, frozen=True):
    """`csd-emu status` and `csd-emu up`.

    `state` is ``up``, ``damaged`` (devices are missing), ``down`` or ``unreadable`` (its state file is; csd-emu clean
    ends it). `counts_for` is the array whose steps it counts: a virtual machine of the clock `sampled`, which comes and
    goes with a run; null for every other array.
    """

    array: str
    engine: str
    state: str
    port: int | None
    devices: list[DeviceStatus]
    counts_for: str | None = None


class StatusReport(msgspec.Struct, frozen=True):
    """`csd-emu status`: every array of this user that has state or is named."""

    arrays: list[ArrayStatus]


class SweepReport(msgspec.Struct, frozen=True):
    """`csd-emu down` and `csd-emu clean`: the devices ended, per array; `busy` arrays were in use and left alone."""

    ended: dict[str, list[str]]
    busy: list[str]


def read_up(array_path: Path, job_path: Path | None, changes: ArrayChanges = AS_IN_FILE) -> ArrayRequest:
    """Read an array and the data that it shall hold: a job's, else the quickstart's.

    Raises:
        ConfigurationError: a file breaks a rule.
    """
    if job_path is not None:
        from host.app.prepare import prepare_run  # torch: an array alone has no need of it

        return prepare_run(resolve_run(job_path, array_path, changes)).array
    return ArrayRequest(read_array(array_path, changes), DEFAULT_DATA, 0)


def bring_up(request: ArrayRequest, paths: Paths, progress: Progress) -> ArrayStatus:
    """Start an array that stays up; leftovers of its name are swept first.

    Raises:
        ConfigurationError: it is up already.
        CsdError: a device did not come up; nothing is left of the array.
    """
    name = request.config.name
    with array_folder(paths.arrays, name) as folder, contextlib.closing(make_engine(request.config, paths)) as engine:
        if (state := ArrayState.load(folder)) is not None and list_running(state, paths):
            raise ConfigurationError(f"array {name!r} is up already; csd-emu down {name} ends it")
        check_port(request.config.host.address, request.config.host.port)
        try:
            _check_keeps(request.config)
            clear_array(engine, name, folder)
            engine.prepare(progress)
            progress.stage(f"start {len(request.config.list_devices())} drives ({request.config.engine_label})")
            return _status(INTERRUPTS.run(_start(request, paths, engine)), request.config, engine)
        except BaseException:
            with INTERRUPTS.deferred():
                clear_array(engine, name, folder)
            raise


def take_down(name: str, paths: Paths) -> SweepReport:
    """End the array called `name`.

    Raises:
        ConfigurationError: there is none.
        EnvironmentUnfit: another process works on it.
    """
    if name not in _names(paths) or not (paths.arrays / name / STATE_FILE).exists():
        raise ConfigurationError(f"array {name!r} is not up; csd-emu status lists arrays, csd-emu clean ends leftovers")
    counting = {counter_array(name, number) for number in range(MAX_COUNTERS)}
    return sweep([name, *counting.intersection(_names(paths))], paths)


def sweep(names: Sequence[str], paths: Paths) -> SweepReport:
    """End every device of the arrays `names`, or of all arrays that can be found; needs no state file.

    Raises:
        EnvironmentUnfit: another process works on an array that was named. Without names such arrays are left alone.
    """
    ended: dict[str, list[str]] = {}
    busy = []
    for name in names or sorted({*_names(paths), *_found(paths)}):
        try:
            ended[name] = _sweep(name, _engines(name, paths), paths)
        except ArrayBusy:
            if names:
                raise
            busy.append(name)
    return SweepReport(ended, busy)


def sweep_file(config: ArrayConfig, paths: Paths) -> SweepReport:
    """End every device of an array on the engines and hypervisors that its file names; needs no state file.

    Raises:
        EnvironmentUnfit: another process works on it, or nothing of what the file names can be reached.
    """
    return SweepReport({config.name: _sweep(config.name, [make_engine(config, paths)], paths)}, [])


def report_status(paths: Paths) -> StatusReport:
    """Return the status of every array with a state file; one whose file cannot be read is ``unreadable``."""
    statuses, names = [], _names(paths)
    counts_for = {counter_array(name, number): name for name in names for number in range(MAX_COUNTERS)}
    for name in names:
        try:
            state = ArrayState.load(paths.arrays / name)
        except ConfigurationError:
            statuses.append(ArrayStatus(name, "unknown", "unreadable", None, []))
            continue
        if state is not None:
            config = parse_config(state.config, ArrayConfig, str(paths.arrays / name / STATE_FILE))
            with contextlib.closing(make_engine(config, paths)) as engine:
                statuses.append(_status(state, config, engine, counts_for.get(name)))
    return StatusReport(statuses)


def schedule_drives(config: ArrayConfig, paths: Paths) -> VmScheduleReport:
    """Ask the hypervisors of an array what is free, and return where its drives would go; nothing is started.

    Raises:
        ConfigurationError: the array has no virtual machines.
        EnvironmentUnfit: there is no room, or no hypervisor answers.
    """
    if QEMU not in config.engines:
        raise ConfigurationError(
            f"array {config.name!r}: has no virtual machines, so none to place; --plan is for engine: qemu"
        )
    from csd_emu.engines.qemu.qemu_engine import QemuEngine  # libvirt

    with contextlib.closing(QemuEngine(config, paths)) as engine:
        return engine.plan()


def _check_keeps(config: ArrayConfig) -> None:
    """Refuse to keep up an array with drives that reach it through an SSH connection, which ends with this command."""
    if config.inventory is None:
        return
    from csd_emu.engines.remote.inventory import drives_of
    from csd_emu.engines.remote.remote_engine import THROUGH_SSH  # SSH: most arrays have no need of it

    through = [name for name, drive in drives_of(config).items() if drive.host_address == THROUGH_SSH]
    if through:
        raise ConfigurationError(
            f"{', '.join(through)}: host_address: {THROUGH_SSH} lasts as long as the command that opened it, so this "
            "array cannot be kept up; use csd-emu run, or give host_address an address in the inventory"
        )


def _sweep(name: str, engines: Sequence[Engine], paths: Paths) -> list[str]:
    """End every device of an array on these engines, and close them."""
    with contextlib.ExitStack() as stack:
        for engine in engines:
            stack.enter_context(contextlib.closing(engine))
        folder = stack.enter_context(array_folder(paths.arrays, name))
        with INTERRUPTS.deferred():
            return sorted(device for engine in engines for device in clear_array(engine, name, folder))


async def _start(request: ArrayRequest, paths: Paths, engine: Engine) -> ArrayState:
    async with contextlib.AsyncExitStack() as box:
        started = await start_array(
            replace(request, kept=True), paths.arrays / request.config.name, engine, box, lambda *_: None
        )
        return started.state


def _status(state: ArrayState, config: ArrayConfig, engine: Engine, counts_for: str | None = None) -> ArrayStatus:
    running: set[str] = set()
    with contextlib.suppress(EnvironmentUnfit):  # their shaped link has gone: nobody reaches them
        running = set(engine.list_devices(config.name))
    devices = [
        DeviceStatus(d.name, d.profile, "running" if d.name in running else "gone", d.samples, d.incarnation)
        for d in state.devices
    ]
    missing = sum(device.state == "gone" for device in devices)
    state_word = "up" if missing == 0 else "down" if missing == len(devices) else "damaged"
    return ArrayStatus(config.name, config.engine_label, state_word, state.port, devices, counts_for)


def _names(paths: Paths) -> list[str]:
    return sorted(path.name for path in paths.arrays.iterdir() if path.is_dir()) if paths.arrays.is_dir() else []


def _found(paths: Paths) -> list[str]:
    """Return the arrays of which devices exist, whether or not there is a folder."""
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(contextlib.closing(engine)) for engine in _engines("any", paths)]
        return [name for engine in engines for name in engine.list_arrays()]


def _engines(name: str, paths: Paths) -> list[Engine]:
    """Return the array's engine; if that is not known, every engine that this machine can run.

    Raises:
        ConfigurationError: no array can have this name.
    """
    with contextlib.suppress(ConfigurationError):  # a damaged state file is what a sweep is for
        if (state := ArrayState.load(paths.arrays / name)) is not None:
            return [make_engine(parse_config(state.config, ArrayConfig, STATE_FILE), paths)]
    engines = []
    for kind in ENGINE.names:
        if kind != REMOTE:  # real drives are found by their inventory alone
            config = {"name": name, "engine": kind, "devices": [{"profile": "newport"}]}
            with contextlib.suppress(EnvironmentUnfit):
                engines.append(make_engine(parse_config(config, ArrayConfig, f"array {name!r}"), paths))
    return engines


_LOOK_SECONDS = 2.0

OnUp = Callable[[ArrayStatus], None]
Work = Callable[[], Coroutine[Any, Any, None]]


def keep_up(
    request: ArrayRequest,
    paths: Paths,
    progress: Progress,
    on_up: OnUp,
    *works: Work,
) -> None:
    """Bring an array up, and end it when this process is interrupted, which is the normal end.

    Args:
        request: what to bring up.
        paths: csd-emu's folders.
        progress: shown the stages.
        on_up: called when every drive has said hello.
        works: begin when the array is up and go on as long; the first that fails ends it.

    Raises:
        CsdError: it did not come up, or something that it needs has failed; nothing is left of it.
    """
    with contextlib.closing(make_engine(request.config, paths)) as engine:
        try:
            status = bring_up(request, paths, progress)
            with present(paths.presence(request.config.name)):
                on_up(status)
                INTERRUPTS.run(INTERRUPTS.wait(_watch(engine, request, paths), *(work() for work in works)))
        finally:
            with INTERRUPTS.deferred():
                _end(engine, request, paths)


async def _watch(engine: Engine, request: ArrayRequest, paths: Paths) -> None:
    """Print which drives have ended or have come back, until cancelled.

    Raises:
        EnvironmentUnfit: another command has ended the array.
    """
    array = request.config.name
    known: Collection[str] = await asyncio.to_thread(engine.list_devices, array)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if not _is_up(request, paths):
            raise EnvironmentUnfit(f"array {array!r} was ended by another command; start it again to go on")
        there = await asyncio.to_thread(engine.list_devices, array)
        for drive in sorted({*known} ^ {*there}):
            console.print(f"{drive} {'is back' if drive in there else 'has ended'}")
        known = there


def _end(engine: Engine, request: ArrayRequest, paths: Paths) -> None:
    """End the array, if it is still the one that was brought up here.

    Beside a run that still works on it only its drives end; the rest is for the next `up` to clear away.
    """
    if not _is_up(request, paths):
        return
    try:
        sweep([request.config.name], paths)
    except ArrayBusy:
        engine.sweep(request.config.name)


def _is_up(request: ArrayRequest, paths: Paths) -> bool:
    state = ArrayState.load(paths.arrays / request.config.name)
    return state is not None and state.run == request.run
