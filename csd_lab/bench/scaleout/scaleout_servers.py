"""Several servers of native drives on this machine: equality with one server, its cost, and servers that are lost."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from safetensors.numpy import load_file

from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import HOME_VARIABLE
from csd_emu.util.progress import Progress
from csd_lab.testkit.prometheus import free_port
from firmware_agent.common.errors import EnvironmentUnfit
from firmware_agent.common.models import ZOO
from host.core.datasets import synthetic_source
from host.core.records import RoundRecord, StepRecord, decode_record
from host.monitoring.run_directory import RECORDS_FILE, SUMMARY_FILE, WEIGHTS_FILE

MODEL, SERVERS, DRIVES = "digits_cnn", ("a", "b", "c"), 4
ERROR_STEPS, LOSS_TRIALS = 50, 2
# The survivors take so many steps in all; one server is killed after so many.
LOSS_STEPS, KILL_AFTER = 40, 10
SILENCE_SECONDS = 5
_WATCHDOG_SECONDS = 300.0
_PROGRAM = [sys.executable, "-P", "-m", "host"]


@dataclass(frozen=True)
class ServersMeasured:
    """Figures and samples of this part of the bench."""

    figures: dict[str, float]
    samples: dict[str, Any]


def measure(folder: Path, seed: int, progress: Progress) -> ServersMeasured:
    """Run jobs over three servers of four native drives, and over one server; kill one of the three in the middle.

    Args:
        folder: empty.
        seed: of the jobs.
        progress: is shown what goes on.

    Returns:
        `hierarchical_error`: largest difference of a weight after 50 steps in float64 between three servers and one
        with all drives. `efficiency_3_servers`: records per array second (modelled) of three servers over three times
        those of one. `server_loss_steps_lost`: steps that the survivors did not take, or took twice.
        `server_loss_seconds_to_resume`: wall seconds of the step in which the server was lost, median of two.

    Raises:
        EnvironmentUnfit: a command failed; its last words are in the message.
    """
    lab = _Lab(folder, seed)
    with lab.store():
        progress.stage("50 steps in float64 on 3 servers of 4 drives, and on 1 of 12")
        error = lab.hierarchical_error()
        progress.stage("throughput of 3 servers and of 1")
        three, one = lab.records_per_second()
        progress.stage("a server is killed in the middle")
        losses = [lab.lose(number) for number in range(LOSS_TRIALS)]
    figures = {
        "hierarchical_error": error,
        "efficiency_3_servers": three / (len(SERVERS) * one),
        "server_loss_steps_lost": float(max(loss["steps_lost"] for loss in losses)),
        "server_loss_seconds_to_resume": statistics.median(loss["seconds_to_resume"] for loss in losses),
    }
    return ServersMeasured(figures, {"records_per_second": {"3 servers": three, "1 server": one}, "losses": losses})


class _Lab:
    """Folders, files and commands."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed, self._number = folder, seed, 0
        self._port = free_port()
        array = {"name": "lab", "engine": "native"}
        self._array = self._write("array.yaml", array | {"devices": [{"profile": "newport", "count": DRIVES}]})
        groups = [{"profile": "newport", "count": DRIVES, "name": server} for server in SERVERS]
        self._one = self._write("one.yaml", array | {"devices": groups})
        self._servers = self._write(
            "servers.yaml",
            {
                "name": "hall",
                "servers": [{"name": server, "array": "array.yaml"} for server in SERVERS],
                "store": {"port": self._port},
                "membership": {"min": 1, "wait": "2 min", "silence": f"{SILENCE_SECONDS} s"},
            },
        )

    def hierarchical_error(self) -> float:
        sync = {"precision": "float64", "round_steps": ERROR_STEPS}
        data = {"source": "digits", "partition": {"dirichlet": 0.5}, "private": 0.3}
        job = self._job({"data": data, "batch_size": 16, "sync": sync})
        together = [_weights(runs) for runs in self._run_servers(job)]
        alone = _weights(self._run_one(job, self._one))
        return max(_difference(alone, weights) for weights in together)

    def records_per_second(self) -> tuple[float, float]:
        source = synthetic_source(ZOO[MODEL].input_shape, ZOO[MODEL].classes, 20_000)
        job = self._job({"data": {"source": source}, "tuner": "stannis", "sync": {"round_steps": 10}})
        servers = [_records_per_second(runs) for runs in self._run_servers(job)]
        return min(servers), _records_per_second(self._run_one(job, self._array))

    def lose(self, number: int) -> dict[str, Any]:
        """Kill one server's processes in the middle of a run, and return what the survivors' records say."""
        data = {"source": "digits", "private": 0.3}
        job = self._job({"data": data, "batch_size": 16, "rounds": LOSS_STEPS, "sync": {"round_steps": 1}})
        lost = SERVERS[-1 - number % (len(SERVERS) - 1)]
        with contextlib.ExitStack() as stack:
            started = {server: stack.enter_context(self._server(job, server)) for server in SERVERS}
            survivors = [server for server in SERVERS if server != lost]
            watched = self._runs(job, survivors[0])
            _wait_for(lambda: len(_steps(watched)) >= KILL_AFTER, started.values())
            killed = _kill_all(started[lost])
            self._finish([started[server] for server in survivors])
        ended = [self._done(self._runs(job, server)) for server in survivors]
        steps = {server: _steps(runs) for server, runs in zip(survivors, ended, strict=True)}
        self._command("sweep", f"lab-{lost}", home=lost)
        odd = [abs(LOSS_STEPS - len({step.step for step in each})) for each in steps.values()]
        twice = [len(each) - len({step.step for step in each}) for each in steps.values()]
        meeting = [max(step.wall_seconds for step in each[KILL_AFTER:]) for each in steps.values()]
        return {
            "server": lost,
            "processes_killed": killed,
            "steps_lost": max(odd) + max(twice),
            "seconds_to_resume": max(meeting),
            "survivors_differ_by": _difference(*map(_weights, ended)),
            "present": [step.servers.present for step in steps[survivors[0]] if step.servers is not None],
        }

    @contextlib.contextmanager
    def store(self) -> Iterator[None]:
        with self._process("store", self._servers, home="store", log=self._folder / "store.log") as process:
            _wait_for(lambda: "until" in (self._folder / "store.log").read_text(), [process])
            yield

    def _run_servers(self, job: Path) -> list[Path]:
        with contextlib.ExitStack() as stack:
            self._finish([stack.enter_context(self._server(job, server)) for server in SERVERS])
        return [self._done(self._runs(job, server)) for server in SERVERS]

    def _run_one(self, job: Path, array: Path) -> Path:
        runs = self._runs(job, "one")
        self._command("run", job, "--array", array, "--runs", runs, home="one")
        return self._done(runs)

    def _done(self, runs: Path) -> Path:
        if not list(runs.glob(f"*/{SUMMARY_FILE}")):
            raise self._failed(runs.name)
        return runs

    def _runs(self, job: Path, server: str) -> Path:
        return self._folder / f"runs-{job.stem}-{server}"

    def _server(self, job: Path, server: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        runs = self._runs(job, server)
        arguments = ("run", job, "--servers", self._servers, "--server", server, "--runs", runs)
        return self._process(*arguments, home=server, log=self._folder / f"{job.stem}-{server}.log")

    def _finish(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            if process.wait(_WATCHDOG_SECONDS) not in (0, 1):
                raise self._failed(process.args)

    def _command(self, *arguments: str | Path, home: str) -> None:
        with self._process(*arguments, home=home, log=self._folder / f"{home}.log") as process:
            self._finish([process])

    @contextlib.contextmanager
    def _process(self, *arguments: str | Path, home: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        environment = os.environ | {HOME_VARIABLE: str(self._folder / home)}
        with open(log, "wb") as stream:
            command = [*_PROGRAM, *map(str, arguments)]
            process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60)
            if process.poll() is None:
                _kill_all(process)

    def _job(self, content: Mapping[str, Any]) -> Path:
        self._number += 1
        usual = {"model": MODEL, "mode": "sync", "rounds": 1, "tuner": "none", "seed": self._seed}
        return self._write(f"job-{self._number}.yaml", usual | dict(content))

    def _write(self, name: str, content: Mapping[str, Any]) -> Path:
        path = self._folder / name
        path.write_text(yaml.safe_dump(dict(content)))
        return path

    def _failed(self, arguments: object) -> EnvironmentUnfit:
        said = [log.read_text(errors="replace").strip().rpartition("\n")[2] for log in self._folder.glob("*.log")]
        words = "; ".join(line for line in said if line.startswith("csd-emu:"))
        return EnvironmentUnfit(f"bench scaleout: {arguments} failed: {words or 'without a word'}")


def _kill_all(process: subprocess.Popen[bytes]) -> int:
    """End a command and all that it has started at once, and return how many processes that were."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGKILL)
    process.wait()
    return len(family)


def _wait_for(true: Any, processes: Any) -> None:
    deadline = Deadline(_WATCHDOG_SECONDS)
    while not true():
        if deadline.expired or any(process.poll() is not None for process in processes):
            raise EnvironmentUnfit("bench scaleout: a server ended, or was not ready in time")
        time.sleep(min(0.05, deadline.left_seconds))


def _rounds(runs: Path) -> list[RoundRecord]:
    lines = [line for path in runs.glob(f"*/{RECORDS_FILE}") for line in path.read_bytes().splitlines()]
    return [record for record in map(decode_record, lines) if isinstance(record, RoundRecord)]


def _steps(runs: Path) -> list[StepRecord]:
    return [step for record in _rounds(runs) for step in record.steps]


def _records_per_second(runs: Path) -> float:
    steps = _steps(runs)
    return sum(step.samples for step in steps) / sum(step.array_seconds for step in steps)


def _weights(runs: Path) -> dict[str, Any]:
    (path,) = runs.glob(f"*/{WEIGHTS_FILE}")
    return dict(load_file(path))


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    if one.keys() != other.keys():
        raise EnvironmentUnfit("bench scaleout: the runs trained different models")
    return max(float(np.max(np.abs(array - other[name]), initial=0.0)) for name, array in one.items())
