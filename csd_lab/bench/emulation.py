"""Benches of the emulated drive: its clock, image, memory and throttles."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import psutil

from csd_emu.engines import Handle, make_engine
from csd_emu.image import ImageStore
from csd_emu.profiles.calibration import CalibrationTable
from csd_emu.util.deadline import Deadline
from csd_emu.util.progress import Silent
from csd_emu.util.qemu_tools import find_qemu
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import (
    WATCHDOG_SECONDS,
    Bench,
    RunningDrives,
    array_of,
    bench_job,
    cpu_hogs,
    measure,
    records_per_device_second,
    request_run,
    spread,
    temporary_folder,
)
from firmware_agent.common.errors import DeviceError
from firmware_agent.common.frames.measure_frames import Probed, ProbeRead, ProbeSend
from firmware_agent.common.frames.session_frames import Disturb, Disturbed
from firmware_agent.common.handover import OWN_SINK
from firmware_agent.common.shipped_code import ShippedCode
from host.app.calibration_measurement import machine_request, measure_table
from host.config.calibration_request import CalibrationRequest, make_request
from host.fleet.device_session import DeviceSession
from host.fleet.lifecycle import StartTimes

RUNS = 3
REPEATED_DEVICES = 4
COMPETITOR_WEIGHT = 100


def bench_repeatability(bench: Bench) -> BenchReport:
    """Repeatability of a drive's own stopwatch, however busy this machine is.

    Measure the training loop on 1 and 4 VMs, idle and beside hogs, the last of the 4 slowed by a competing task.

    Figures: `spread`, (max - min) / mean of records per device second over all undisturbed devices of all runs;
    `slowed_spread`, the same over the slowed one.
    """

    async def work(drives: RunningDrives) -> dict[str, Any]:
        sessions = await drives.prepare(bench.seed)
        samples: dict[str, Any] = {"undisturbed": {}, "slowed": {}}
        for hogs in (0, os.cpu_count() or 1):
            for devices in (1, REPEATED_DEVICES):
                bench.progress.stage(f"measure {devices} drives beside {hogs} hogs, {RUNS} times")
                with cpu_hogs(hogs):
                    await _measure_runs(sessions[:devices], hogs, samples)
        return samples

    samples = bench.on_machines(REPEATED_DEVICES, work)
    rates = {kind: [rate for rates in runs.values() for rate in rates] for kind, runs in samples.items()}
    figures = {"spread": spread(rates["undisturbed"]), "slowed_spread": spread(rates["slowed"])}
    return bench.report("counted", figures, samples)


async def _measure_runs(sessions: list[DeviceSession], hogs: int, samples: dict[str, Any]) -> None:
    slowed = sessions[1:][-1:]
    key = f"{len(sessions)} drives, {hogs} hogs"
    for session in slowed:
        await _disturb(session, COMPETITOR_WEIGHT)
    for _ in range(RUNS):
        rates = [records_per_device_second(m) for m in await asyncio.gather(*map(measure, sessions))]
        if slowed:
            samples["slowed"].setdefault(key, []).append(rates.pop())
        samples["undisturbed"].setdefault(key, []).extend(rates)
    for session in slowed:
        await _disturb(session, 0)


async def _disturb(session: DeviceSession, weight: int) -> None:
    await session.send(Disturb(weight))
    await session.expect(Disturbed, Deadline(WATCHDOG_SECONDS))


DEVICES = 8


def bench_startup(bench: Bench) -> BenchReport:
    """Time until an array is there.

    Make the template anew, then start 8 drives together and wait for the last hello. Wall seconds.

    Figures: `array_seconds` from the first start to the last hello, template not included; `clone_seconds_median` of
    one drive, from its own start to its hello; `template_seconds`.
    """
    template_seconds = _remake_template(bench)

    async def work(drives: RunningDrives) -> StartTimes:
        return drives.started.times

    times = bench.on_machines(DEVICES, work)
    figures = {
        "array_seconds": times.array_seconds,
        "clone_seconds_median": statistics.median(times.device_seconds.values()),
        "template_seconds": template_seconds,
    }
    return bench.report("wall", figures, {"clone_seconds": times.device_seconds})


def _remake_template(bench: Bench) -> float:
    """Boot the template on this machine anew, even if there is one, and return the wall seconds that it took."""
    from csd_emu.engines.qemu.libvirt_daemon import SessionDaemon
    from csd_emu.engines.qemu.template import TemplateStore

    config, image = array_of(bench.name, DEVICES), ImageStore(bench.paths.images).ensure(bench.progress)
    store = TemplateStore(bench.paths.templates, find_qemu(), SessionDaemon(bench.paths))
    template = store.find(image, int(config.memory))
    store.remove(template)
    with contextlib.closing(make_engine(config, bench.paths)) as machines:
        machines.prepare(bench.progress)
    return float(template.facts["template_seconds"])


RUNS = 3


def bench_slowdown(bench: Bench) -> BenchReport:
    """Cost of the agent, against a bare torch loop in the same VM.

    Run the agent's training loop and the bare loop in turn, in one VM.

    Figure: `agent_over_bare`, the ratio of the medians of records per second of the guest's own clock, over the whole
    loop: for the agent all between the phases counts too.
    """

    async def work(drives: RunningDrives) -> dict[str, list[float]]:
        (session,) = await drives.prepare(bench.seed)
        rates: dict[str, list[float]] = {"agent": [], "bare": []}
        for number in range(RUNS):
            for name in rates:
                bench.progress.stage(f"{name} loop, run {number + 1} of {RUNS}")
                measured = await measure(session, bare=name == "bare")
                rates[name].append(measured.samples / measured.elapsed_seconds)
        return rates

    rates = bench.on_machines(1, work)
    ratio = statistics.median(rates["agent"]) / statistics.median(rates["bare"])
    return bench.report("counted", {"agent_over_bare": ratio}, {"records_per_guest_second": rates})


DEVICES = 8
ROUNDS = 3


def bench_memory(bench: Bench) -> BenchReport:
    """Memory of one more drive.

    Train the quickstart's model for three rounds on 8 clones, then read what each QEMU holds for itself.

    Figure: `bytes_per_clone`, the sum of private memory in smaps_rollup, divided by 8.
    """
    job = bench_job(bench.seed).model_copy(update={"rounds": ROUNDS})
    request = request_run(array_of(bench.name, DEVICES), job)

    async def work(drives: RunningDrives) -> dict[str, int]:
        bench.progress.stage(f"train {ROUNDS} rounds on {DEVICES} drives")
        async with drives.training(request) as training:
            while not training.done:
                await training.run_round()
        return {handle.plan.device.name: _private_bytes(handle) for handle in drives.started.handles}

    private = bench.on_array(request.array, work)
    return bench.report("wall", {"bytes_per_clone": sum(private.values()) / DEVICES}, {"private_bytes": private})


def _private_bytes(handle: Handle) -> int:
    """Return the memory that only this device's QEMU holds, in bytes, from the kernel's smaps_rollup.

    Raises:
        DeviceError: its process cannot be found on this machine.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(f"guest={handle.reference}," in word for word in process.cmdline()):
                return int(process.memory_full_info().uss)
    raise DeviceError(f"{handle.plan.device.name}: its QEMU process is not on this machine")


def bench_image(bench: Bench) -> BenchReport:
    """Time to build the ARM image.

    Build the image from nothing, in a folder of its own; only downloads are taken from the cache. Wall seconds.

    Figure: `build_seconds`, all stages but the downloads, the check boot included.
    """
    cache = bench.paths.cache
    cache.mkdir(parents=True, exist_ok=True)
    with temporary_folder(cache) as folder:
        stages = ImageStore(folder, downloads=cache / "downloads").ensure(bench.progress).metadata
    return bench.report("wall", {"build_seconds": stages["build_seconds"]}, {"stages": stages})


MACHINES = 2
# Small images, or a bench would take hours; the largest batch is the one that the table does not get to see. The
# longest work first, so that both machines end together.
DIGITS = (("digits_cnn", (1, 2, 4, 8, 16, 32, 64)),)
IMAGES = (
    ("mobilenet_v2", (2, 8, 16, 20, 32)),
    ("resnet50", (2, 4, 8, 12)),
    ("squeezenet", (2, 8, 16, 24, 40)),
)
DIGITS_SHAPE, IMAGES_SHAPE = (1, 8, 8), (3, 32, 32)
CLASSES = 10


def bench_calibration(bench: Bench) -> BenchReport:
    """Error of a calibration table at a batch size that it does not have.

    Measure four models on VMs, then foretell the largest batch of each from a table of the others.

    Figure: `worst_error`, the largest of |foretold / measured - 1| over the models, of seconds per step.
    """
    tables: list[CalibrationTable] = []
    for shape, cases in ((DIGITS_SHAPE, DIGITS), (IMAGES_SHAPE, IMAGES)):
        requests = [
            make_request(ShippedCode(name, None, {"num_classes": CLASSES}), shape, batches, seed=bench.seed)
            for name, batches in cases
        ]
        tables += _measure(requests, bench)
    samples = {table.model: _held_out(table) for table in tables}
    worst = max(abs(sample["error"]) for sample in samples.values())
    return bench.report("counted", {"worst_error": worst}, samples)


def _measure(requests: Sequence[CalibrationRequest], bench: Bench) -> list[CalibrationTable]:
    """Measure models of one input shape, at most `MACHINES` at a time."""
    largest = max(requests, key=lambda request: request.machine_bytes)
    todo = deque(requests)
    tables: list[CalibrationTable] = []

    async def work(drives: RunningDrives) -> None:
        async def measure_next(session: DeviceSession) -> None:
            while todo:
                tables.append(await measure_table(session, todo.popleft(), drives.engine.image_hash, Silent()))

        bench.progress.stage(f"measure {', '.join(request.spec.name for request in requests)}")
        await asyncio.gather(*map(measure_next, drives.sessions))

    bench.on_array(machine_request(largest, "bench-calib", min(MACHINES, len(requests))), work)
    return tables


def _held_out(table: CalibrationTable) -> dict[str, Any]:
    """Return what the table says of its largest batch without its row, beside what was measured."""
    *rows, last = table.rows
    rest = msgspec.structs.replace(table, rows=tuple(rows))
    foretold = rest.step_seconds(last.batch_size)
    return {
        "input_shape": list(table.input_shape),
        "held_out_batch": last.batch_size,
        "foretold_seconds": msgspec.to_builtins(foretold),
        "measured_seconds": msgspec.to_builtins(last.seconds),
        "error": foretold.total / last.seconds.total - 1,
        "rows": [{"batch_size": row.batch_size, "steps": msgspec.to_builtins(row.steps)} for row in table.rows],
    }


# Bytes per second, well below what can be emulated at all (docs/fidelity.md).
READ_RATES = (50_000_000, 100_000_000, 200_000_000)
SEND_RATES = (5_000_000, 10_000_000, 20_000_000)
RUNS = 3
SHORTEST_SECONDS, LONGEST_SECONDS = 3.0, 4.0
# The guest's clock counts instructions while it works. Under a throttle it mostly waits, and then follows wall time.
CLOCK = "wall"


class ThrottleMeasurement(NamedTuple):
    """One measurement: which throttle, at how many bytes per second, over how many bytes."""

    throttle: str
    rate: int
    size_bytes: int


def bench_throttles(bench: Bench) -> BenchReport:
    """Precision of a drive's own throttles, by the clock of a guest that waits.

    Have one VM read and send under its own `io.max` and `tbf`, idle and beside hogs on the host.

    Figures: `worst_error_idle` and `worst_error_loaded`, the largest ``|seen - asked| / asked`` of all throttles,
    rates and runs; a rate is bytes as the throttle counts them (`io.max`: data; `tbf`: Ethernet frames with headers)
    per second of the guest's clock. The report's clock is `CLOCK`. The seed draws the order and the sizes.
    """

    async def work(drives: RunningDrives) -> dict[str, list[dict[str, Any]]]:
        (session,) = drives.sessions
        generator, samples = random.Random(bench.seed), {}
        for state, hogs in (("idle", 0), ("loaded", 2 * (os.cpu_count() or 1))):
            with cpu_hogs(hogs):
                samples[state] = [await _sample(session, asked, bench) for asked in draw(generator)]
        return samples

    samples = bench.on_machines(1, work)
    figures = {f"worst_error_{state}": worst_error(found) for state, found in samples.items()}
    return bench.report(CLOCK, figures, samples)


def draw(generator: random.Random) -> list[ThrottleMeasurement]:
    """Return every rate of both throttles `RUNS` times, in drawn order, each with a drawn number of bytes."""
    kinds = [("io.max", rate) for rate in READ_RATES] + [("tbf", rate) for rate in SEND_RATES]
    asked = [
        ThrottleMeasurement(throttle, rate, int(rate * generator.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)))
        for throttle, rate in kinds * RUNS
    ]
    generator.shuffle(asked)
    return asked


def worst_error(samples: Sequence[dict[str, Any]]) -> float:
    """Return the largest ``|seen - asked| / asked`` of samples with these two rates, in bytes per second."""
    errors: list[float] = [abs(s["seen_bytes_per_second"] / s["asked_bytes_per_second"] - 1) for s in samples]
    return max(errors)


async def probe(session: DeviceSession, asked: ThrottleMeasurement) -> Probed:
    """Have one device read, or send to itself, under a throttle (a rate of 0: without it)."""
    if asked.throttle == "io.max":
        await session.send(ProbeRead(asked.size_bytes, asked.rate))
    else:
        await session.send(ProbeSend(asked.size_bytes, asked.rate, OWN_SINK))
    return await session.expect(Probed, Deadline(WATCHDOG_SECONDS))


async def _sample(session: DeviceSession, asked: ThrottleMeasurement, bench: Bench) -> dict[str, Any]:
    bench.progress.stage(f"{asked.throttle} at {asked.rate / 1e6:g} MB/s")
    probed = await probe(session, asked)
    return {
        "throttle": asked.throttle,
        "asked_bytes_per_second": asked.rate,
        "seen_bytes_per_second": probed.counted_bytes / probed.seconds,
        "size_bytes": asked.size_bytes,
        "counted_bytes": probed.counted_bytes,
        "seconds": probed.seconds,
    }
