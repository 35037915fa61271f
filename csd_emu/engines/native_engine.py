"""Drives as processes on this machine: for a first try, for tests, and for a laptop without QEMU."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from csd_emu.config.array_file import NATIVE, ArrayConfig, Device
from csd_emu.config.engine_names import ENGINE
from csd_emu.engines import native_launcher
from csd_emu.engines.engine_protocol import (
    DevicePlan,
    Engine,
    Fault,
    Handle,
    Surroundings,
    must_run,
    not_from_outside,
)
from csd_emu.engines.native_launcher import CONSOLE, LAUNCHER_FOLDER
from csd_emu.engines.shaping import Shape, Shaper, make_shaper, release
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.process_identity import ProcessMark, end_processes, mark_of
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import DeviceError, EnvironmentUnfit
from firmware_agent.common.handover import IDENTITY_FILE, SHARD_FILE
from firmware_agent.common.identity import read_identity

PROCESS_FILE = "process.json"
_STOP_SECONDS, _POLL_SECONDS = 5.0, 0.001
# Importing torch takes a second, and far longer from a cold disk beside other work.
_LAUNCH_SECONDS = 120.0
# -P: a file of the user's called like one of Python's own modules must not take its place.
_LAUNCHER = [sys.executable, "-P", native_launcher.__file__]
# As in a drive: malloc returns no memory to the kernel; else each exchange of weights would fault in its pages again.
# A process that is forked must have one thread.
_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": "67108864",
    "OPENBLAS_NUM_THREADS": "1",
}
# A launcher that imports already, for the engine that needs one first.
_AHEAD: list[subprocess.Popen[bytes]] = []
_SIGNALS = {Fault.KILL: signal.SIGKILL, Fault.FREEZE: signal.SIGSTOP, Fault.THAW: signal.SIGCONT}


@ENGINE.register("native", "Each drive is a process on this machine.")
class NativeEngine(Engine):
    """Each device is a process of `native_launcher` in its folder, which names array and device."""

    faults = frozenset(_SIGNALS)

    def __init__(self, arrays_folder: Path, shaper: Shaper | None = None) -> None:
        """Work below `arrays_folder`, which holds one folder per array; `shaper` is of the array that is started."""
        self._arrays_folder, self._shaper = arrays_folder.resolve(), shaper
        self._launcher: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    @classmethod
    def of_array(cls, config: ArrayConfig, paths: Paths) -> NativeEngine:
        """Return the engine of an array, with its shaped link if it has one."""
        return cls(paths.arrays, make_shaper(config, paths.arrays))

    def surroundings(self, device: Device) -> Surroundings:
        """Return the machine's clock and loopback, or what a shaped link has in its place."""
        if self._shaper is None:
            return Surroundings("wall", "127.0.0.1")
        return Surroundings("wall", self._shaper.dial_address, self._shaper.listen_address)

    def prepare(self, progress: Progress) -> None:
        """Make the shaped link, if there is one, and start the launcher, which imports for seconds; `close` ends it."""
        if self._shaper is not None:
            self._shaper.open()
        with self._turn:
            self._ready_launcher()

    def shape(self, shape: Shape) -> None:
        """Change the shape of a link that is shaped.

        Raises:
            EnvironmentUnfit: it is not, or not any more.
        """
        if self._shaper is None:
            raise EnvironmentUnfit("this array's link is not shaped; add link.shaped: auto to the array file")
        self._shaper.change(shape)

    def start(self, plan: DevicePlan) -> Handle:
        """Have the launcher start a process of its own session."""
        for target, name in ((plan.identity, IDENTITY_FILE), (plan.shard, SHARD_FILE), (plan.console, CONSOLE)):
            if target != plan.folder / name:
                raise DeviceError(f"{plan.device.name}: {target} must lie in {plan.folder} as {name}")
        if self._shaper is not None:
            self._shaper.connect(read_identity(plan.identity).port)
        plan.console.write_bytes(b"")
        with self._turn:
            pid = self._launch(plan)
        if (mark := mark_of(pid)) is None:
            raise DeviceError(f"{plan.device.name}: its process ended at once; see {plan.console}")
        mark.save(plan.folder / PROCESS_FILE)
        return Handle(plan, str(pid))

    def _launch(self, plan: DevicePlan) -> int:
        """Return the number of a new process."""
        launcher = self._ready_launcher()
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        with contextlib.suppress(OSError):
            launcher.stdin.write(json.dumps(str(plan.folder)).encode() + b"\n")
            launcher.stdin.flush()
        answers = select.select([launcher.stdout], [], [], _LAUNCH_SECONDS)[0]
        if not (said := launcher.stdout.readline().decode() if answers else ""):
            raise DeviceError(
                f"{plan.device.name}: the launcher of native drives has ended, or does not answer: "
                f"{self._end_launcher() or 'it said nothing'}"
            )
        if not said.strip().isdecimal():
            raise DeviceError(f"{plan.device.name}: no process can be started for it: {said.strip()}")
        with contextlib.suppress(psutil.Error):  # of one that ended at once another process may have the number
            process = psutil.Process(int(said))
            if _wait_until(lambda: folder_of(process) == plan.folder.resolve(), _STOP_SECONDS):
                return process.pid
        raise DeviceError(f"{plan.device.name}: its process ended at once; see {plan.console}")

    def _ready_launcher(self) -> subprocess.Popen[bytes]:
        """Return the launcher, another one if it has ended."""
        if self._launcher is None or self._launcher.poll() is not None:
            self._end_launcher()
            if self._shaper is not None:
                self._launcher = _start_launcher(self._shaper.command(_LAUNCHER))
            else:
                self._launcher = _AHEAD.pop() if _AHEAD else _start_launcher(_LAUNCHER)
        return self._launcher

    def _end_launcher(self) -> str:
        """End the launcher, whose drives go on; return what it has said to people."""
        launcher, self._launcher = self._launcher, None
        return "" if launcher is None else _end(launcher)

    def find(self, plan: DevicePlan) -> Handle | None:
        """Return the process that serves the plan's folder."""
        process = _recorded(plan.folder)
        return None if process is None or _ended(process) else Handle(plan, str(process.pid))

    def alive(self, handle: Handle) -> bool:
        """Return whether the process runs; one that has ended is reaped."""
        process = self._process(handle)
        return process is not None and not _ended(process)

    def inject(self, handle: Handle, fault: Fault) -> None:
        """Send the signal that makes the fault; one that is killed has ended when this returns.

        Raises:
            DeviceError: it does not run, or does not end.
        """
        if fault not in self.faults:
            raise not_from_outside(handle, fault)
        if (process := self._process(handle)) is None or _ended(process):
            raise must_run(handle, fault)
        process.send_signal(_SIGNALS[fault])
        if fault is Fault.KILL and not _wait_until(lambda: _ended(process), _STOP_SECONDS):
            raise DeviceError(
                f"{handle.plan.device.name}: process {process.pid} was killed and has not ended within "
                f"{_STOP_SECONDS:g} s; wait until its I/O is over"
            )

    def stop(self, handle: Handle) -> None:
        """End the process."""
        if (process := self._process(handle)) is not None:
            end_processes([process], _STOP_SECONDS)

    def list_devices(self, array: str) -> list[str]:
        """Return the devices of `array` that run.

        Raises:
            EnvironmentUnfit: they do, but their shaped link is gone.
        """
        if (found := sorted(self._find(array))) and self._shaper is not None:
            self._shaper.check()
        return found

    def list_arrays(self) -> list[str]:
        """Return the arrays of which an agent runs."""
        folders = [
            *(folder for _, folder in _unrecorded() if folder.parent.parent.parent == self._arrays_folder),
            *(path.parent for path in self._arrays_folder.glob(f"*/devices/*/{PROCESS_FILE}")),
        ]
        return sorted({folder.parent.parent.name for folder in folders if self._find(folder.parent.parent.name, True)})

    def sweep(self, array: str) -> list[str]:
        """End every process of `array`."""
        found = self._find(array, leftovers=True)
        end_processes(list(found.values()), _STOP_SECONDS)
        release(self._arrays_folder, array)
        return sorted(found)

    def close(self) -> None:
        """End the launcher; what it has started goes on."""
        with self._turn:
            self._end_launcher()

    def _process(self, handle: Handle) -> psutil.Process | None:
        process = _recorded(handle.plan.folder)
        return process if process is not None and str(process.pid) == handle.reference else None

    def _find(self, array: str, leftovers: bool = False) -> dict[str, psutil.Process]:
        """Return device name -> process of each agent of `array` that runs; `leftovers` too, whose record is gone."""
        devices_folder = self._arrays_folder / array / "devices"
        unrecorded = _unrecorded() if leftovers else ()
        return {
            **{folder.name: process for process, folder in unrecorded if folder.parent == devices_folder},
            **{
                path.parent.name: process
                for path in devices_folder.glob(f"*/{PROCESS_FILE}")
                if (process := _recorded(path.parent)) is not None and not _ended(process)
            },
        }


@contextlib.contextmanager
def launched_ahead(config: ArrayConfig, paths: Paths) -> Iterator[None]:
    """Start the launcher of an array's native drives, unless they run, so that it imports beside what else is imported.

    Whichever engine needs a launcher first takes it; if none did, it is ended.
    """
    native = any(node.engine == NATIVE for node in config.list_nodes())
    if native and config.link.shaped is None and not NativeEngine(paths.arrays)._find(config.name):
        _AHEAD.append(_start_launcher(_LAUNCHER))
    try:
        yield
    finally:
        while _AHEAD:
            _end(_AHEAD.pop())


def _start_launcher(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=_ENVIRONMENT | os.environ,
    )


def _end(launcher: subprocess.Popen[bytes]) -> str:
    """End a launcher; return what it has said to people."""
    launcher.kill()
    return launcher.communicate()[1].decode(errors="replace").strip()


def folder_of(process: psutil.Process) -> Path | None:
    """Return the folder that a native drive's process serves; None of another process; `psutil.Error` if it ends."""
    command = process.cmdline()
    is_ours = len(command) == len(_LAUNCHER) and Path(command[-1]).name == Path(_LAUNCHER[-1]).name
    return None if not is_ours or process.cwd() == LAUNCHER_FOLDER else Path(process.cwd())


def _recorded(folder: Path) -> psutil.Process | None:
    """Return the process that was started for a device's folder, if it still is: by number, user and start."""
    mark = ProcessMark.load(folder / PROCESS_FILE)
    return None if mark is None else mark.find()


def _ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


def _unrecorded() -> Iterator[tuple[psutil.Process, Path]]:
    """Yield process and folder of this user's agents that no record knows, as a killed `csd-emu up` may leave one."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                (folder := folder_of(process)) is not None
                and process.uids().real == os.geteuid()
                and ProcessMark.load(folder / PROCESS_FILE) in (None, mark_of(process.pid))
            ):
                yield process, folder


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether a condition came to hold within so many seconds."""
    deadline, pause = Deadline(seconds), threading.Event()
    while not condition():
        if deadline.expired:
            return False
        pause.wait(_POLL_SECONDS)
    return True
