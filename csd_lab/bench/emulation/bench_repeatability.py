"""Repeatability of a drive's own stopwatch, however busy this machine is."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from csd_emu.engines.qemu.qemu_engine import QemuEngine
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import (
    WATCHDOG_SECONDS,
    cpu_hogs,
    measure,
    prepare_sessions,
    records_per_device_second,
    report,
    spread,
    with_array,
)
from firmware_agent.common.frames.session_frames import Disturb, Disturbed
from host.fleet.device_session import DeviceSession
from host.fleet.lifecycle import StartedArray

RUNS = 3
DEVICES = 4
COMPETITOR_WEIGHT = 100


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Measure the training loop on 1 and 4 VMs, idle and beside hogs, the last of the 4 slowed by a competing task.

    Figures: `spread`, (max - min) / mean of records per device second over all undisturbed devices of all runs;
    `slowed_spread`, the same over the slowed one.
    """

    async def work(started: StartedArray, _: QemuEngine) -> dict[str, Any]:
        sessions = await prepare_sessions(started, seed)
        samples: dict[str, Any] = {"undisturbed": {}, "slowed": {}}
        for hogs in (0, os.cpu_count() or 1):
            for devices in (1, DEVICES):
                progress.stage(f"measure {devices} drives beside {hogs} hogs, {RUNS} times")
                with cpu_hogs(hogs):
                    await _measure_runs(sessions[-devices:] if devices > 1 else sessions[:1], hogs, samples)
        return samples

    samples = with_array("repeatability", DEVICES, paths, progress, seed, work)
    figures = {
        "spread": spread([rate for rates in samples["undisturbed"].values() for rate in rates]),
        "slowed_spread": spread([rate for rates in samples["slowed"].values() for rate in rates]),
    }
    return report("repeatability", "counted", seed, figures, samples)


async def _measure_runs(sessions: list[DeviceSession], hogs: int, samples: dict[str, Any]) -> None:
    slowed = sessions[-1] if len(sessions) > 1 else None
    key = f"{len(sessions)} drives, {hogs} hogs"
    if slowed is not None:
        await _disturb(slowed, COMPETITOR_WEIGHT)
    for _ in range(RUNS):
        rates = [records_per_device_second(m) for m in await asyncio.gather(*map(measure, sessions))]
        if slowed is not None:
            samples["slowed"].setdefault(key, []).append(rates.pop())
        samples["undisturbed"].setdefault(key, []).extend(rates)
    if slowed is not None:
        await _disturb(slowed, 0)


async def _disturb(session: DeviceSession, weight: int) -> None:
    await session.send(Disturb(weight))
    await session.expect(Disturbed, Deadline(WATCHDOG_SECONDS))
