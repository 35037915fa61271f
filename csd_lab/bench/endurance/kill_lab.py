"""Folders, files, commands and processes of `csd-emu bench kill`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml
from safetensors.numpy import load_file

from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import HOME_VARIABLE
from csd_lab.bench.endurance.kill_judge import SAME_WEIGHTS, Aim, all_finite, difference, first_change, says_so
from csd_lab.testkit.prometheus import free_port
from firmware_agent.common.atomic_files import PARTIAL
from firmware_agent.common.errors import DeviceError
from host.core.records import EventKind, EventRecord, Record, RoundRecord, StepRecord, decode_record
from host.monitoring.run_directory import CHECKPOINT_FILE, JOB_FILE, RECORDS_FILE, SUMMARY_FILE, WEIGHTS_FILE

ROUNDS, ROUND_STEPS, SERVERS = 5, 4, ("a", "b")
NATIVE, QEMU, GROUP = "native", "qemu", "servers"
_KIND = {"host": NATIVE, "drive": NATIVE, "vm": QEMU, "virtqemud": QEMU, "server": GROUP}
# What is watched: a server that is killed is the second.
_WATCHED = {NATIVE: "", QEMU: "", GROUP: SERVERS[-1]}
_WATCHDOG_SECONDS, _LOOK_SECONDS, _KILL_SECONDS = 600.0, 0.002, 30.0
_PROGRAM = [sys.executable, "-P", "-m", "host"]
_PROCESSES = {"vm": ("qemu-system",), "virtqemud": ("virtqemud", "libvirtd")}
_WORDS = 500


class KillLab:
    """One bench's folder, and the undisturbed runs that all others are compared with; a context manager."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Write the files; nothing is started yet."""
        self._folder = folder
        self.seconds: dict[str, dict[str, float]] = {}
        self._whole: dict[str, tuple[dict[str, Any], list[StepRecord]]] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        job = {"model": "digits_cnn", "mode": "sync", "data": {"source": "digits", "private": 0.3}, "rounds": ROUNDS}
        job |= {"batch_size": 16, "tuner": "none", "seed": seed, "sync": {"round_steps": ROUND_STEPS}}
        self._job = self._write("job.yaml", job)
        devices = [{"profile": "newport", "count": 3}]
        for engine in (NATIVE, QEMU):
            self._write(f"{engine}.yaml", {"name": f"bench-kill-{engine}", "engine": engine, "devices": devices})
        content: dict[str, Any] = {"name": "kill", "servers": [{"name": s, "array": "native.yaml"} for s in SERVERS]}
        content |= {"store": {"port": free_port()}, "membership": {"min": 1, "wait": "2 min", "silence": "5 s"}}
        self._servers = self._write("servers.yaml", content)

    def __enter__(self) -> KillLab:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for home in self._folder.glob("home*"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._command(home.name.removeprefix("home").removeprefix("-"), "sweep")

    def kinds_of(self, aims: Sequence[Aim]) -> list[str]:
        """Return which undisturbed runs are needed."""
        return sorted({_KIND[aim.target] for aim in aims})

    def measure(self, kind: str) -> None:
        """Run without a fault: keep weights, steps, and how long its parts last.

        A first run is for images, templates and caches, which are there in all later ones.
        """
        self._measure(kind, self._folder / f"first-{kind}")
        self._measure(kind, self._folder / f"whole-{kind}")

    def _measure(self, kind: str, runs: Path) -> None:
        begin = time.monotonic()
        with self._store(kind):
            started = self._start_all(kind, runs)
            process, watched = started[_WATCHED[kind]], _of(runs, _WATCHED[kind])
            _wait(process, lambda: _rounds_of(watched) >= 1)
            first = time.monotonic()
            _wait(process, lambda: _rounds_of(watched) >= ROUNDS)
            last = time.monotonic()
            if any(each.wait(_WATCHDOG_SECONDS) != 0 for each in started.values()):
                raise DeviceError(f"bench kill: the undisturbed run ({kind}) failed: {self._words()}")
        parts = {"boot": first - begin, "round": (last - first) / (ROUNDS - 1), "report": time.monotonic() - last}
        self.seconds[kind] = parts
        judged = _of(runs, SERVERS[0] if kind == GROUP else "")
        weights = _weights(judged)
        if weights is None:
            raise DeviceError(f"bench kill: the undisturbed run ({kind}) left no weights")
        self._whole[kind] = weights, _steps(judged)

    def trial(self, number: int, aim: Aim) -> dict[str, Any]:
        """Kill what is aimed at, let the run come to its end, resumed if it must be, and say what came of it."""
        kind = _KIND[aim.target]
        runs = self._folder / f"trial-{number}"
        with self._store(kind):
            started = self._start_all(kind, runs)
            process, watched = started[_WATCHED[kind]], _of(runs, _WATCHED[kind])
            self._await(process, watched, aim, self.seconds[kind])
            killed = self._kill(aim.target, process)
            before = _rounds_of(watched)
            codes, resumed = self._come_to_an_end(kind, aim.target, started, runs)
        self._sweep_leftovers(kind)
        what = {"target": aim.target, "moment": aim.moment, "round": aim.round, "fraction": aim.fraction}
        what |= {"killed": killed, "rounds_recorded": before, "resumed": resumed, "exit_codes": codes}
        judged = _of(runs, SERVERS[0] if kind == GROUP else "")
        return what | self._judge(aim, kind, judged, watched, before) | ({} if not any(codes) else self._said())

    def _judge(self, aim: Aim, kind: str, judged: Path, watched: Path, before: int) -> dict[str, Any]:
        """Return what came of a run: `judged` has its weights, `watched` lost what was killed."""
        weights, whole = _weights(judged), self._whole[kind]
        ended = weights is not None and any(judged.glob(f"*/{SUMMARY_FILE}"))
        change = first_change(_steps(judged), whole[1])
        same = aim.target in SAME_WEIGHTS
        # Of two servers the one that is left has every round; the other takes over from it.
        lost = ROUNDS - _rounds_of(judged) if kind == GROUP else before - _resumed_after(watched, before)
        return {
            "ended": ended,
            "finite": weights is not None and all_finite(weights),
            "rounds_lost": max(0, lost),
            "difference": difference(weights, whole[0]) if same and weights is not None else float(same),
            "recorded": None if same or change is None else says_so(*change),
        }

    def _come_to_an_end(
        self, kind: str, target: str, started: Mapping[str, subprocess.Popen[bytes]], runs: Path
    ) -> tuple[list[int], bool]:
        """Return the exit codes of all that ended last, and whether one was resumed, or begun anew."""
        codes, resumed = [], False
        again: dict[str, subprocess.Popen[bytes]] = {}
        if target == "server":  # while the other one goes on
            again[SERVERS[-1]] = self._go_on(SERVERS[-1], _of(runs, SERVERS[-1]), kind)
        for name, process in started.items():
            code = _end(process) if name not in again else _end(again[name])
            if code != 0:
                resumed = True
                code = _end(self._go_on(name, _of(runs, name), kind))
            codes.append(code)
        return codes, resumed or bool(again)

    def _go_on(self, name: str, runs: Path, kind: str) -> subprocess.Popen[bytes]:
        """Resume a run, or begin it anew if it had not written what it is."""
        directory = _directory(runs)
        if directory is None or not (directory / JOB_FILE).exists():
            return self._run(name, runs, kind)
        return self._start(name, "run", "--resume", str(directory))

    def _start_all(self, kind: str, runs: Path) -> dict[str, subprocess.Popen[bytes]]:
        names = SERVERS if kind == GROUP else ("",)
        return {name: self._run(name, _of(runs, name), kind) for name in names}

    def _run(self, name: str, runs: Path, kind: str) -> subprocess.Popen[bytes]:
        where = ("--servers", str(self._servers), "--server", name) if kind == GROUP else ()
        array = () if kind == GROUP else ("--array", str(self._folder / f"{kind}.yaml"))
        return self._start(name, "run", str(self._job), *array, *where, "--runs", str(runs))

    @contextlib.contextmanager
    def _store(self, kind: str) -> Iterator[None]:
        if kind != GROUP:
            yield
            return
        process = self._start("store", "store", str(self._servers))
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            _end(process)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self._folder / "said.log", "ab") as log:
            command, quiet = [*_PROGRAM, *arguments], subprocess.DEVNULL
            process = subprocess.Popen(command, stdin=quiet, stdout=log, stderr=log, env=self._environment(name))
        self._started.append(process)
        return process

    def _command(self, name: str, *arguments: str) -> None:
        quiet = subprocess.DEVNULL
        command = [*_PROGRAM, *arguments]
        environment = self._environment(name)
        subprocess.run(command, stdout=quiet, stderr=quiet, env=environment, timeout=_WATCHDOG_SECONDS, check=False)

    def _home(self, name: str) -> Path:
        return self._folder / (f"home-{name}" if name else "home")

    def _environment(self, name: str) -> dict[str, str]:
        return os.environ | {HOME_VARIABLE: str(self._home(name))}

    def _sweep_leftovers(self, kind: str) -> None:
        """End what a killed server has left; runs of one server clear up themselves."""
        if kind == GROUP:
            for name in SERVERS:
                self._command(name, "sweep")

    def _await(self, process: subprocess.Popen[bytes], runs: Path, aim: Aim, seconds: Mapping[str, float]) -> None:
        """Return at the moment; the run may have ended before."""
        if aim.moment == "boot":
            return _pause(process, aim.fraction * seconds["boot"])
        if aim.moment == "checkpoint":
            _wait(process, lambda: _rounds_of(runs) >= aim.round)
            return _wait(process, lambda: _partial(runs) or _rounds_of(runs) > aim.round)
        _wait(process, lambda: _rounds_of(runs) >= (ROUNDS if aim.moment == "report" else aim.round))
        return _pause(process, aim.fraction * seconds[aim.moment])

    def _kill(self, target: str, process: subprocess.Popen[bytes]) -> int:
        """Send SIGKILL, and return to how many processes."""
        if target == "host":
            found = [] if process.poll() is not None else [psutil.Process(process.pid)]
        elif target == "server":
            found = self._of_home(SERVERS[-1])
        else:
            found = self._of_home("", _PROCESSES.get(target, ("agent",)))[:1]
        children = {child.pid: child for child in self._started}
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        for each in found:
            with contextlib.suppress(psutil.Error, subprocess.TimeoutExpired):
                children.get(each.pid, each).wait(_KILL_SECONDS)  # psutil would take a child's exit code away
        return len(found)

    def _of_home(self, name: str, names: tuple[str, ...] = ()) -> list[psutil.Process]:
        """Return processes that work for a home: all of them, or those of these names; ``agent``: a drive's."""
        home, found = str(self._home(name)), []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                mine = process.environ().get(HOME_VARIABLE) == home or any(f"{home}/" in part for part in command)
                mine = mine or any(f"{home}/" in value for value in process.environ().values())
                called = process.name().startswith(names) if names else True
                is_agent = names == ("agent",) and "firmware_agent" in command and f"{home}/" in command[-1]
                if mine and (called or is_agent):
                    found.append(process)
        return found

    def _said(self) -> dict[str, str]:
        return {"said": self._words()}

    def _words(self) -> str:
        return (self._folder / "said.log").read_text(errors="replace")[-_WORDS:]

    def _write(self, name: str, content: dict[str, Any]) -> Path:
        path = self._folder / name
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path


def _of(runs: Path, name: str) -> Path:
    return runs / name if name else runs


def _end(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code; a run that hangs is ended, which is a run that was lost."""
    try:
        return process.wait(_WATCHDOG_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _wait(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Return when the condition holds, or the process has ended."""
    deadline = Deadline(_WATCHDOG_SECONDS)
    while not condition() and process.poll() is None:
        if deadline.expired:
            raise DeviceError(f"bench kill: a run did nothing for {_WATCHDOG_SECONDS:.0f} s of wall time")
        time.sleep(_LOOK_SECONDS)


def _pause(process: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _directory(runs: Path) -> Path | None:
    """Return the newest run directory, if there is one: a run that could not be resumed was begun anew."""
    found = [path for path in runs.iterdir() if path.is_dir() and path.name not in SERVERS] if runs.is_dir() else []
    return max(found, default=None)


def _records(runs: Path) -> list[Record]:
    directory = _directory(runs)
    path = None if directory is None else directory / RECORDS_FILE
    lines = path.read_bytes().split(b"\n")[:-1] if path is not None and path.exists() else []
    return [decode_record(line) for line in lines]


def _rounds_of(runs: Path) -> int:
    directory = _directory(runs)
    path = None if directory is None else directory / RECORDS_FILE
    lines = path.read_bytes().split(b"\n")[:-1] if path is not None and path.exists() else []
    return sum(line.startswith(b'{"kind":"round"') for line in lines)


def _resumed_after(runs: Path, before: int) -> int:
    """Return after how many rounds a run was last resumed; `before` if it never was, 0 if it was begun anew."""
    records = _records(runs)
    resumed = [each for each in records if isinstance(each, EventRecord) and each.what is EventKind.RESUMED]
    if resumed:
        return int(resumed[-1].detail.rpartition(" ")[2])
    return before if sum(isinstance(each, RoundRecord) for each in records) >= before else 0


def _steps(runs: Path) -> list[StepRecord]:
    return [step for record in _records(runs) if isinstance(record, RoundRecord) for step in record.steps]


def _weights(runs: Path) -> dict[str, Any] | None:
    directory = _directory(runs)
    path = None if directory is None else directory / WEIGHTS_FILE
    return dict(load_file(path)) if path is not None and path.exists() else None


def _partial(runs: Path) -> bool:
    """Return whether a checkpoint is being written."""
    directory = _directory(runs)
    return directory is not None and any(directory.glob(f"{CHECKPOINT_FILE}*{PARTIAL}"))
