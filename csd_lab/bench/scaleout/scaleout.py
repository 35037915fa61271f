"""Scale beyond one machine: stub agents on one host process, and several servers, of which one is lost."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.util.deadline import Deadline
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.command_lab import CommandLab, newest, read_steps
from csd_lab.bench.harness import Bench, array_of, temporary_folder
from csd_lab.bench.scaleout import scaleout_simulation
from csd_lab.bench.scaleout.fleet_stubs import (
    HOST_FILE,
    KEYS_FOLDER,
    Credentials,
    HostReport,
    HostTask,
    StubTask,
    write_task,
)
from csd_lab.bench.training.noop_rounds import ELEMENTS
from csd_lab.testkit.final_weights import difference, read_weights
from csd_lab.testkit.prometheus import end_process, free_port
from firmware_agent.common.errors import EnvironmentUnfit
from firmware_agent.common.models import ZOO
from firmware_agent.common.slices import Array
from host.core.datasets import synthetic_source
from host.fleet.certificates import Authority, HostKeys
from host.monitoring.run_directory import SUMMARY_FILE

DEVICES = 1000
ROUNDS = 30
# Stubs take turns on what cores the host leaves.
STUB_PROCESSES = 2
DEADLINE_SECONDS = 240.0
_HOST, _STUBS = "csd_lab.bench.scaleout.fleet_host", "csd_lab.bench.scaleout.fleet_stubs"


def measure_fleet(
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
        end_process(process)
        if process.stdout is not None:
            process.stdout.close()


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


MODEL, SERVERS, SERVER_DRIVES = "digits_cnn", ("a", "b", "c"), 4
ERROR_STEPS, LOSS_TRIALS = 50, 2
# The survivors take so many steps in all; one server is killed after so many.
LOSS_STEPS, KILL_AFTER = 40, 10
_LOOK_SECONDS = 0.05


def measure_servers(folder: Path, bench: Bench) -> tuple[dict[str, float], dict[str, Any]]:
    """Run jobs over three servers of four native drives, and over one server; kill one of the three in the middle.

    Args:
        folder: empty.
        bench: has the seed of the jobs.

    Returns:
        Figures and samples. `hierarchical_error`: largest difference of a weight after 50 steps in float64 between
        three servers and one with all drives. `efficiency_3_servers`: records per array second (modelled) of three
        servers over three times those of one. `server_loss_steps_lost`: steps that the survivors did not take, or took
        twice. `server_loss_seconds_to_resume`: wall seconds of the step in which the server was lost, median of two.

    Raises:
        EnvironmentUnfit: a command failed; its last words are in the message.
    """
    with _ServersLab("scaleout", folder) as lab:
        lab.set_up(bench.seed)
        with lab.store(lab.servers):
            bench.progress.stage("50 steps in float64 on 3 servers of 4 drives, and on 1 of 12")
            error = lab.hierarchical_error()
            bench.progress.stage("throughput of 3 servers and of 1")
            three, one = lab.records_per_second()
            bench.progress.stage("a server is killed in the middle")
            losses = [lab.lose(number) for number in range(LOSS_TRIALS)]
    figures = {
        "hierarchical_error": error,
        "efficiency_3_servers": three / (len(SERVERS) * one),
        "server_loss_steps_lost": float(max(loss["steps_lost"] for loss in losses)),
        "server_loss_seconds_to_resume": statistics.median(loss["seconds_to_resume"] for loss in losses),
    }
    return figures, {"records_per_second": {"3 servers": three, "1 server": one}, "losses": losses}


class _ServersLab(CommandLab):
    """Servers with an array each, and one server with the drives of all."""

    def set_up(self, seed: int) -> None:
        self._seed, self._number = seed, 0
        array = {"name": "lab", "engine": "native"}
        self._array = self.write("array.yaml", array | {"devices": [{"profile": "newport", "count": SERVER_DRIVES}]})
        groups = [{"profile": "newport", "count": SERVER_DRIVES, "name": server} for server in SERVERS]
        self._all_drives = self.write("one.yaml", array | {"devices": groups})
        self.servers = self.write_servers(SERVERS, self._array)

    def hierarchical_error(self) -> float:
        sync = {"precision": "float64", "round_steps": ERROR_STEPS}
        data = {"source": "digits", "partition": {"dirichlet": 0.5}, "private": 0.3}
        job = self._job(data=data, batch_size=16, sync=sync)
        together = [self._weights(run) for run in self._run_servers(job)]
        alone = self._weights(self._run_one(job, self._all_drives))
        return max(difference(alone, weights) for weights in together)

    def records_per_second(self) -> tuple[float, float]:
        source = synthetic_source(ZOO[MODEL].input_shape, ZOO[MODEL].classes, 20_000)
        job = self._job(data={"source": source}, tuner="stannis", sync={"round_steps": 10})
        servers = [_records_per_second(run) for run in self._run_servers(job)]
        return min(servers), _records_per_second(self._run_one(job, self._array))

    def lose(self, number: int) -> dict[str, Any]:
        """Kill one server's processes in the middle of a run, and return what the survivors' records say."""
        data = {"source": "digits", "private": 0.3}
        job = self._job(data=data, batch_size=16, rounds=LOSS_STEPS, sync={"round_steps": 1})
        lost = SERVERS[-1 - number % (len(SERVERS) - 1)]
        started = {server: self._server(job, server) for server in SERVERS}
        survivors = [server for server in SERVERS if server != lost]
        watched = self._runs(job, survivors[0])
        if not self.wait(started[survivors[0]], lambda: len(read_steps(newest(watched))) >= KILL_AFTER, _LOOK_SECONDS):
            raise self.failed("a server ended")
        killed = self.kill(self.processes_of(lost))
        self._finish(started[server] for server in survivors)
        ended = [self._done(self._runs(job, server)) for server in survivors]
        steps = {server: read_steps(run) for server, run in zip(survivors, ended, strict=True)}
        self.run(lost, "clean", f"lab-{lost}")
        odd = [abs(LOSS_STEPS - len({step.step for step in each})) for each in steps.values()]
        twice = [len(each) - len({step.step for step in each}) for each in steps.values()]
        meeting = [max(step.wall_seconds for step in each[KILL_AFTER:]) for each in steps.values()]
        return {
            "server": lost,
            "processes_killed": killed,
            "steps_lost": max(odd) + max(twice),
            "seconds_to_resume": max(meeting),
            "survivors_differ_by": difference(*map(self._weights, ended)),
            "present": [step.servers.present for step in steps[survivors[0]] if step.servers is not None],
        }

    def _run_servers(self, job: Path) -> list[Path]:
        self._finish([self._server(job, server) for server in SERVERS])
        return [self._done(self._runs(job, server)) for server in SERVERS]

    def _run_one(self, job: Path, array: Path) -> Path:
        runs = self._runs(job, "one")
        self._finish([self.start("one", "run", job, "--array", array, "--runs", runs)])
        return self._done(runs)

    def _done(self, runs: Path) -> Path:
        """Return the directory of a run that has ended."""
        if not (newest(runs) / SUMMARY_FILE).exists():
            raise self.failed(f"{runs.name} did not end")
        return newest(runs)

    def _runs(self, job: Path, server: str) -> Path:
        return self.folder / f"runs-{job.stem}-{server}"

    def _server(self, job: Path, server: str) -> subprocess.Popen[bytes]:
        where = ("--servers", self.servers, "--server", server)
        return self.start(server, "run", job, *where, "--runs", self._runs(job, server))

    def _finish(self, processes: Iterable[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            if self.end(process) not in (0, 1):
                raise self.failed(f"{process.args!r} failed")

    def _job(self, **content: Any) -> Path:
        self._number += 1
        usual = {"model": MODEL, "mode": "sync", "rounds": 1, "tuner": "none", "seed": self._seed}
        return self.write(f"job-{self._number}.yaml", usual | content)

    def _weights(self, directory: Path) -> dict[str, Array]:
        weights = read_weights(directory)
        if weights is None:
            raise self.failed(f"{directory.name} left no weights")
        return weights


def _records_per_second(directory: Path) -> float:
    steps = read_steps(directory)
    return sum(step.samples for step in steps) / sum(step.array_seconds for step in steps)


def bench_scaleout(bench: Bench) -> BenchReport:
    """Scale beyond one machine: several servers as one, one that is lost, 1,000 drives on a host, 36,000 simulated.

    Measure several servers, a fleet of stub agents, and the simulation of a thousand servers.

    Figures: `hierarchical_error`, `efficiency_3_servers` (clock ``modelled``), `server_loss_steps_lost`,
    `server_loss_seconds_to_resume` (``wall``), `fleet_1000_noop_round_seconds` (``wall``), `fleet_1000_megabytes`,
    `simulate_36000_drives_seconds` (``wall``).
    """
    bench.progress.stage("36,000 drives simulated for 100 steps")
    simulated = scaleout_simulation.measure(bench.seed)
    with temporary_folder() as folder:
        bench.progress.stage("1,000 stub agents on one host process")
        fleet, fleet_samples = measure_fleet(folder, bench.seed)
    with temporary_folder() as folder:
        figures, servers_samples = measure_servers(folder, bench)
    name = "simulate_36000_drives_seconds"
    figures |= {f"fleet_1000_{key}": value for key, value in fleet.items()} | {name: simulated.pop(name)}
    samples = {"servers": servers_samples, "fleet_1000": fleet_samples, "simulation": simulated}
    clocks = {"efficiency_3_servers": "modelled"}
    return bench.report("wall", figures, samples | {"clocks": clocks}, engine="native")
