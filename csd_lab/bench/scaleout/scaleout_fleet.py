"""A thousand stub agents on one host process, and rounds in which nothing is computed."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from csd_emu.util.deadline import Deadline
from csd_lab.bench.harness import bench_config
from csd_lab.bench.scaleout.fleet_job import (
    HOST_FILE,
    KEYS_FOLDER,
    Credentials,
    HostReport,
    HostTask,
    StubTask,
    write_task,
)
from csd_lab.testkit.prometheus import free_port
from firmware_agent.common.errors import EnvironmentUnfit
from host.fleet.certificates import Authority, HostKeys

DEVICES = 1000
# One float32 tensor of 4 KiB, as in the bench `rounds`.
ELEMENTS = 1024
WARM_UP_ROUNDS, ROUNDS = 3, 30
# Stubs take turns on what cores the host leaves.
STUB_PROCESSES = 2
DEADLINE_SECONDS = 240.0
_HOST, _STUBS = "csd_lab.bench.scaleout.fleet_host", "csd_lab.bench.scaleout.fleet_stubs"
_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class FleetMeasured:
    """What was measured.

    Attributes:
        figures: `noop_round_seconds`, wall, the median; `megabytes`, the most resident memory of the host process.
        samples: the seconds of each round, and what else the host process saw of itself.
    """

    figures: dict[str, float]
    samples: dict[str, object]


def measure(folder: Path, seed: int, devices: int = DEVICES, rounds: int = ROUNDS) -> FleetMeasured:
    """Do rounds without an epoch on stub agents that dial one host process: mutual TLS, a stream for each of them.

    The host process is as that of a run (fleet, sessions, round exchange, accounting, aggregation, libraries) but for
    model and evaluation: what crosses is one tensor of `ELEMENTS` float32. The agents are stubs in processes beside it.

    Args:
        folder: empty, and this user's own: keys are put there.
        seed: of the tensor.
        devices: how many stubs.
        rounds: how many are measured.

    Raises:
        EnvironmentUnfit: a process failed, or was not done in time; none is left.
    """
    names = [device.name for device in bench_config("scaleout", devices, "native").list_devices()]
    port = free_port()
    task = HostTask(port, names, ELEMENTS, WARM_UP_ROUNDS, rounds, seed, DEADLINE_SECONDS)
    write_task(folder / HOST_FILE, task)
    stubs = _write_stubs(folder, names, port)
    deadline = Deadline(DEADLINE_SECONDS)
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(_process(_HOST, folder / HOST_FILE))
        for path in stubs:
            stack.enter_context(_process(_STUBS, path))
        seen = _report(host, folder / "host.log", deadline)
    figures = {"noop_round_seconds": statistics.median(seen.round_seconds), "megabytes": seen.peak_bytes / 1e6}
    return FleetMeasured(figures, {"devices": devices, "tensor_bytes": 4 * ELEMENTS} | msgspec.structs.asdict(seen))


def _write_stubs(folder: Path, names: list[str], port: int) -> list[Path]:
    """Write host's and stubs' keys; return a file for each process of stubs."""
    authority = Authority("bench-scaleout")
    HostKeys(authority.ca_pem, authority.issue_host()).save(folder / KEYS_FOLDER)
    issued = [(name, authority.issue_device(name)) for name in names]
    stubs = [Credentials(name, each.certificate_pem, each.key_pem) for name, each in issued]
    paths = []
    for number in range(min(STUB_PROCESSES, len(names))):
        paths.append(folder / f"stubs-{number}.json")
        write_task(paths[-1], StubTask(port, authority.ca_pem, stubs[number::STUB_PROCESSES]))
    return paths


@contextlib.contextmanager
def _process(module: str, task: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of ours on a task inside the block; its errors go beside the task."""
    with open(task.with_suffix(".log"), "wb") as log:
        process = _start(module, task, log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _start(module: str, task: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", module, str(task)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
    )


def _report(host: subprocess.Popen[bytes], log: Path, deadline: Deadline) -> HostReport:
    """Return what the host process printed when it was done."""
    try:
        printed, _ = host.communicate(timeout=deadline.left_seconds)
    except subprocess.TimeoutExpired:
        raise EnvironmentUnfit(f"bench scaleout: the host process was not done in {deadline.seconds:.0f} s") from None
    if host.returncode != 0:
        last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        raise EnvironmentUnfit(f"bench scaleout: the host process failed: {last or host.returncode}")
    return msgspec.json.decode(printed, type=HostReport)
