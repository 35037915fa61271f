"""Harness of the benches: an array of VMs for the time of a measurement, hogs, and the machine's description."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles import get_profile
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_emu.util.qemu_tools import find_qemu
from csd_lab.bench.bench_report import BenchReport
from firmware_agent.common.frames.measure_frames import Measure, Measured
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.models import ModelSpec
from host.config.job_file import DEFAULT_DATA, JobConfig
from host.core.datasets import load_dataset
from host.fleet.device_session import DeviceSession
from host.fleet.lifecycle import ArrayRequest, StartedArray
from host.fleet.temporary_array import run_on_machines
from host.training.round_exchange import job_frame, prepare_device

if TYPE_CHECKING:  # a machine without libvirt runs the native benches
    from csd_emu.engines.qemu.qemu_engine import QemuEngine

PROFILE = "newport"
BATCH_SIZE = 64
MEASURE_SECONDS = 2.0
# Wall time after which a measuring device counts as dead.
WATCHDOG_SECONDS = 600.0

T = TypeVar("T")


def bench_config(name: str, devices: int, engine: str = "qemu") -> ArrayConfig:
    """Return an array of `devices` Newport-class drives that belongs to the bench called `name`."""
    return ArrayConfig.model_validate(
        {"name": f"bench-{name}", "engine": engine, "devices": [{"profile": PROFILE, "count": devices}]}
    )


def bench_job(seed: int) -> JobConfig:
    """Return the quickstart's training, by the names of a job file."""
    return JobConfig.model_validate(
        {"model": "digits_cnn", "data": DEFAULT_DATA.model_dump(), "batch_size": BATCH_SIZE, "seed": seed}
    )


def bench_frame(seed: int) -> Job:
    """Return the quickstart's job as devices get it."""
    job = bench_job(seed)
    return job_frame(job, ModelSpec(job.model), load_dataset(job.data.source, seed).image_scale)


def with_array(
    name: str,
    devices: int,
    paths: Paths,
    progress: Progress,
    seed: int,
    work: Callable[[StartedArray, QemuEngine], Awaitable[T]],
) -> T:
    """Start `devices` VMs, do `work` on them, and end them whatever happens."""
    request = ArrayRequest(bench_config(name, devices), DEFAULT_DATA, seed)
    return run_on_machines(request, paths, progress, work)


async def prepare_sessions(started: StartedArray, seed: int) -> list[DeviceSession]:
    """Have all devices build the quickstart's model; return their sessions, in the array's order."""
    sessions = list(started.fleet.sessions().values())
    deadline = Deadline(WATCHDOG_SECONDS)
    await asyncio.gather(*(prepare_device(session, bench_frame(seed), deadline) for session in sessions))
    return sessions


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


def spread(values: Sequence[float]) -> float:
    """Return (max - min) / mean."""
    return (max(values) - min(values)) / statistics.fmean(values)


def report(
    bench: str, clock: str, seed: int, figures: dict[str, float], samples: dict[str, Any], engine: str = "qemu"
) -> BenchReport:
    """Return a report with this machine's description."""
    return BenchReport(bench, engine, clock, seed, figures, samples, describe_machine(engine))


def describe_machine(engine: str = "qemu") -> dict[str, Any]:
    """Return what a figure's reader needs to know of the machine, QEMU included if the bench ran on it."""
    machine = {
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "processor": _processor(),
        "system": platform.platform(),
        "load_average_1min": os.getloadavg()[0],
    }
    if engine == "qemu":
        tools = find_qemu()
        machine |= {"qemu": tools.version, "machine_type": tools.machine}
    return machine


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
