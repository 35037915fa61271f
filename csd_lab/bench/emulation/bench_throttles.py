"""Precision of a drive's own throttles, by the clock of a guest that waits."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from csd_emu.util.deadline import Deadline
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import WATCHDOG_SECONDS, Bench, RunningDrives, cpu_hogs
from firmware_agent.common.frames.measure_frames import Probed, ProbeRead, ProbeSend
from firmware_agent.common.handover import OWN_SINK
from host.fleet.device_session import DeviceSession

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


def run(bench: Bench) -> BenchReport:
    """Have one VM read and send under its own `io.max` and `tbf`, idle and beside hogs on the host.

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
