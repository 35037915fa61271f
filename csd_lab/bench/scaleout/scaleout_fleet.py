"""A thousand stub agents on one host process, and rounds in which nothing is computed."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from csd_emu.util.deadline import Deadline
from csd_lab.bench.harness import array_of
from csd_lab.bench.noop_rounds import ELEMENTS
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
ROUNDS = 30
# Stubs take turns on what cores the host leaves.
STUB_PROCESSES = 2
DEADLINE_SECONDS = 240.0
_HOST, _STUBS = "csd_lab.bench.scaleout.fleet_host", "csd_lab.bench.scaleout.fleet_stubs"
_STOP_SECONDS = 10.0


def measure(
    folder: Path, seed: int, devices: int = DEVICES, rounds: int = ROUNDS
) -> tuple[dict[str, float], dict[str, object]]:
    """Do rounds without an epoch on stub agents that dial one host process: mutual TLS, a stream for each of them.

    The host process is as that of a run (fleet, sessions, round exchange, accounting, aggregation, libraries) but for
    model and evaluation: what crosses is one tensor of `ELEMENTS` float32. The agents are stubs in processes beside it.

    Args:
        folder: empty, and this user's own: keys are put there.
        seed: of the tensor.
        devices: how many stubs.
        rounds: how many are measured.

    Returns:
        Figures: `noop_round_seconds`, wall, the median; `megabytes`, the most resident memory of the host process.
        Samples: the seconds of each round, and what else the host process saw of itself.

    Raises:
        EnvironmentUnfit: a process failed, or was not done in time; none is left.
    """
    names = [device.name for device in array_of("scaleout", devices, "native").list_devices()]
    port = free_port()
    task = HostTask(port, names, ELEMENTS, rounds, seed, DEADLINE_SECONDS)
    write_task(folder / HOST_FILE, task)
    stubs = _write_stubs(folder, names, port)
    deadline = Deadline(DEADLINE_SECONDS)
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(_process(_HOST, folder / HOST_FILE))
        for path in stubs:
            stack.enter_context(_process(_STUBS, path))
        seen = _report(host, folder / "host.log", deadline)
    figures = {"noop_round_seconds": statistics.median(seen.round_seconds), "megabytes": seen.peak_bytes / 1e6}
    return figures, {"devices": devices, "tensor_bytes": 4 * ELEMENTS} | msgspec.structs.asdict(seen)


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
    command = [sys.executable, "-P", "-m", module, str(task)]
    with open(task.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


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
