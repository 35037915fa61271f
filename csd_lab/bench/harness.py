"""Harness of the benches: drives for the time of a measurement, what disturbs it, and the report."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import Engine, make_engine
from csd_emu.profiles import get_profile
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_emu.util.qemu_tools import find_qemu
from csd_lab.bench.bench_report import BenchReport
from firmware_agent.agent import device_facts
from firmware_agent.common.errors import BootTimeout
from firmware_agent.common.frames.measure_frames import Measure, Measured
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.shipped_code import ShippedCode
from host.app.array_service import make_service
from host.app.prepare import RunRequest, prepare_run
from host.app.training_run import make_participants, make_sync_training, round_frame
from host.config.job_file import DEFAULT_DATA, JobConfig
from host.config.resolve import ResolvedRun
from host.core.datasets import load_dataset
from host.core.learning.default_objective import default_objective
from host.core.records import OnEvent
from host.fleet.device_session import DeviceSession
from host.fleet.lifecycle import ArrayRequest, StartedArray
from host.fleet.temporary_array import run_on_engine
from host.training.accounting import make_accountant
from host.training.federated import FederatedTraining
from host.training.round_exchange import RoundExchange, job_frame, prepare_device
from host.training.run_faults import RunFaults
from host.training.sync.round_totals import PLANNED, RunGuide
from host.training.training_protocol import Training

PROFILE = "newport"
BATCH_SIZE = 64
MEASURE_SECONDS = 2.0
# Wall time after which a measuring device counts as dead.
WATCHDOG_SECONDS = 600.0
DIAL_SECONDS = 60.0

T = TypeVar("T")
# Maps a function over its arguments and gives the results in their order.
Spread = Callable[..., Iterable[Any]]


def array_of(
    name: str, devices: int | Sequence[Mapping[str, Any]], engine: str = "qemu", **sections: Any
) -> ArrayConfig:
    """Return the array of the bench called `name`: so many Newport-class drives, or groups of others.

    `sections` are more keys of an array file.
    """
    groups = [{"profile": PROFILE, "count": devices}] if isinstance(devices, int) else devices
    return ArrayConfig.model_validate({"name": f"bench-{name}", "engine": engine, "devices": groups, **sections})


def bench_job(seed: int) -> JobConfig:
    """Return the quickstart's training, by the names of a job file."""
    return JobConfig.model_validate(
        {"model": "digits_cnn", "data": DEFAULT_DATA.model_dump(), "batch_size": BATCH_SIZE, "seed": seed}
    )


def bench_frame(seed: int) -> Job:
    """Return the quickstart's job as devices get it."""
    job = bench_job(seed)
    return job_frame(job, ShippedCode(job.model), default_objective(load_dataset(job.data.source, seed)))


def request_run(config: ArrayConfig, job: JobConfig | Mapping[str, Any], spec: ShippedCode | None = None) -> RunRequest:
    """Return the run of a job, or of a job file's keys, on an array; without `spec` of the model that the job names."""
    checked = job if isinstance(job, JobConfig) else JobConfig.model_validate(job)
    return prepare_run(ResolvedRun(config, checked, spec or ShippedCode(checked.model)))


@dataclass(frozen=True)
class Bench:
    """A measurement in progress.

    Attributes:
        name: of the bench.
        paths: csd-emu's folders.
        progress: is shown what goes on.
        seed: of everything random.
    """

    name: str
    paths: Paths
    progress: Progress
    seed: int

    def on_machines(self, devices: int, work: Callable[[RunningDrives], Awaitable[T]]) -> T:
        """Start `devices` VMs with the quickstart's data, do `work` on them, and end them whatever happens."""
        return self.on_array(array_of(self.name, devices), work)

    def on_processes(self, devices: int, work: Callable[[RunningDrives], Awaitable[T]]) -> T:
        """Do the same on native drives."""
        return self.on_array(array_of(self.name, devices, "native"), work)

    def on_array(
        self,
        array: ArrayConfig | ArrayRequest,
        work: Callable[[RunningDrives], Awaitable[T]],
        engine: Engine | None = None,
    ) -> T:
        """Do the same on any array, with the quickstart's data or those of a request; `engine` in place of its own.

        Raises:
            EnvironmentUnfit: the engine lacks something, or another process uses an array of this name.
            DeviceError: a device did not come up.
        """
        request = array if isinstance(array, ArrayRequest) else ArrayRequest(array, DEFAULT_DATA, self.seed)
        used = engine or make_engine(request.config, self.paths)
        return run_on_engine(
            *(used, request, self.paths, self.progress),
            lambda started, engine: work(RunningDrives(request.config, started, engine)),
        )

    def report(
        self, clock: str, figures: dict[str, float], samples: dict[str, Any], engine: str = "qemu"
    ) -> BenchReport:
        """Return a report with this machine's description."""
        return BenchReport(self.name, engine, clock, self.seed, figures, samples, describe_machine(engine))


class RunningDrives:
    """Drives that are up.

    Attributes:
        config: their array.
        started: all that was started.
        fleet: the drives as the host sees them.
        engine: that they run on.
        names: of all drives, in the array's order.
    """

    def __init__(self, config: ArrayConfig, started: StartedArray, engine: Any) -> None:
        """Take what `run_on_engine` has started."""
        self.config, self.started, self.fleet, self.engine = config, started, started.fleet, engine
        self.names = [device.name for device in config.list_devices()]

    @property
    def sessions(self) -> list[DeviceSession]:
        """Those that are open, in the array's order."""
        return list(self.fleet.sessions().values())

    def list_existing(self) -> list[str]:
        """Return the drives that run."""
        found: list[str] = self.engine.list_devices(self.config.name)
        return found

    async def prepare(self, seed: int) -> list[DeviceSession]:
        """Have all devices build the quickstart's model; return their sessions."""
        deadline, frame = Deadline(WATCHDOG_SECONDS), bench_frame(seed)
        await asyncio.gather(*(prepare_device(session, frame, deadline) for session in self.sessions))
        return self.sessions

    async def dial_anew(self) -> None:
        """Have every drive dial in a new session: one whose slices overlap takes one job.

        Raises:
            BootTimeout: one does not.
        """
        old, missing = set(self.sessions), set(self.names)
        for session in old:
            session.close("another job follows")
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                while True:
                    newcomer, live = self.fleet.newcomer, self.fleet.sessions()
                    missing = {name for name in self.names if live.get(name) in (None, *old)}
                    if not missing:
                        return
                    await newcomer.wait()
        except TimeoutError:
            raise BootTimeout(f"{', '.join(sorted(missing))} did not dial in again; the console says why") from None

    @contextlib.asynccontextmanager
    async def training(
        self,
        request: RunRequest,
        on_event: OnEvent = lambda *_: None,
        among: Collection[str] | None = None,
        guide: RunGuide = PLANNED,
    ) -> AsyncIterator[Training]:
        """Have the training of a request for the time of the block.

        Args:
            request: of these drives, or of the same ones behind another link.
            on_event: told of what happens.
            among: the drives that train, of a federated job; None for all.
            guide: of a synchronous job.
        """
        accountant = make_accountant(request.config, request.models, service=make_service(request))
        nodes = [node.name for node in request.config.list_nodes()]
        async with RunFaults(self.fleet, nodes, accountant.time, on_event) as faults:
            if request.sync is not None:
                participants = make_participants(request, self.fleet, self.list_existing, on_event)
                yield make_sync_training(request, participants, accountant, faults, guide=guide)
                return
            exchange = RoundExchange(
                request.job, round_frame(request), self.fleet, self.list_existing, on_event, faults.before_task
            )
            exchange.learning_rate = request.round_rate
            names, plugin = self.names if among is None else list(among), request.plugins.strategy
            yield FederatedTraining(request.job, names, exchange, accountant, request.evaluator, plugin)


async def measure(session: DeviceSession, bare: bool = False) -> Measured:
    """Have one device run its training loop, or the bare loop, for `MEASURE_SECONDS` of its own clock."""
    await session.send(Measure(BATCH_SIZE, MEASURE_SECONDS, bare))
    return await session.expect(Measured, Deadline(WATCHDOG_SECONDS))


def records_per_device_second(measured: Measured) -> float:
    """Return the rate of a device of the bench's profile, over the phases in which a task was runnable."""
    return measured.samples / get_profile(PROFILE).device_seconds(measured.seconds).total


@contextlib.contextmanager
def cpu_hogs(count: int) -> Iterator[None]:
    """Keep `count` processes busy inside the block."""
    hogs = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Have an empty folder of this user's own inside the block."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="csd-bench-") as name:
        yield Path(name)


@contextlib.contextmanager
def spread_over(processes: int | None) -> Iterator[Spread]:
    """Give what maps over so many processes; None for one per processor, 1 for this one alone.

    They are new ones, not forks: this one may have threads of torch's and of gRPC's.
    """
    if processes == 1:
        yield map
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield pool.map


def spread(values: Sequence[float]) -> float:
    """Return (max - min) / mean."""
    return (max(values) - min(values)) / statistics.fmean(values)


def describe_machine(engine: str = "qemu") -> dict[str, Any]:
    """Return what a figure's reader needs to know of the machine, QEMU included if the bench ran on it."""
    machine = {
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "processor": device_facts()["processor"],
        "system": platform.platform(),
        "load_average_1min": os.getloadavg()[0],
    }
    if engine == "qemu":
        tools = find_qemu()
        machine |= {"qemu": tools.version, "machine_type": tools.machine}
    return machine


# A run from which more of the processor time that was wanted was stolen says more about others than about itself.
MOST_STOLEN = 0.1
# So many times as many runs as are wanted are made at most, with those that are made again.
MOST_PASSES = 2.5

_NOT_BUSY = ("idle", "iowait", "steal", "guest", "guest_nice")


def read_ticks() -> tuple[float, float]:
    """Return seconds of all processors together since the machine began: given to somebody, and kept from who wanted.

    Where the machine is nobody's guest, or does not say so, nothing is kept from anybody.
    """
    times = psutil.cpu_times()._asdict()
    # Guests' seconds are in user's.
    busy = sum(seconds for kind, seconds in times.items() if kind not in _NOT_BUSY)
    return busy, times.get("steal", 0.0)


class StolenTime:
    """Watches from now on how much of the processor time that was wanted here was given to others."""

    def __init__(self, read: Callable[[], tuple[float, float]] = read_ticks) -> None:
        """Begin to watch."""
        self._read, self._begin = read, read()

    @property
    def share(self) -> float:
        """Stolen over wanted seconds until now; 0 if none were wanted."""
        busy, stolen = (now - before for now, before in zip(self._read(), self._begin, strict=True))
        wanted = stolen + busy
        return stolen / wanted if wanted > 0 else 0.0


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """A run, of several the one from which the least was stolen.

    Attributes:
        result: what it returned.
        stolen_share: of the processor time that was wanted meanwhile.
        runs: how many were made.
    """

    result: T
    stolen_share: float
    runs: int


async def undisturbed(
    jobs: Sequence[Callable[[], Awaitable[T]]],
    advance: Callable[[float], None] = lambda _: None,
    passes: float = MOST_PASSES,
    watch: Callable[[], StolenTime] = StolenTime,
) -> list[Attempt[T]]:
    """Run all jobs in their order, and those again from which much was stolen, after all others.

    What is run again goes by that alone, never by what came of it.

    Args:
        jobs: each may be run several times.
        advance: told the share of the jobs that are done with.
        passes: at most so many times as many runs are made as there are jobs.
        watch: begins to watch a run.
    """
    waiting, best = deque(range(len(jobs))), dict[int, Attempt[T]]()
    left = round(passes * len(jobs))
    while waiting and left:
        number, left = waiting.popleft(), left - 1
        stolen, before = watch(), best.get(number)
        seen = Attempt(await jobs[number](), stolen.share, 1)
        kept = seen if before is None or seen.stolen_share < before.stolen_share else before
        best[number] = replace(kept, runs=1 if before is None else before.runs + 1)
        if kept.stolen_share > MOST_STOLEN:
            waiting.append(number)
        advance(1 - len(waiting) / len(jobs))
    return [best[number] for number in range(len(jobs))]
