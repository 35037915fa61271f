"""Repeatability of a drive's own stopwatch, however busy this machine is."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from csd_emu.util.deadline import Deadline
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import (
    WATCHDOG_SECONDS,
    Bench,
    RunningDrives,
    cpu_hogs,
    measure,
    records_per_device_second,
    spread,
)
from firmware_agent.common.frames.session_frames import Disturb, Disturbed
from host.fleet.device_session import DeviceSession

RUNS = 3
DEVICES = 4
COMPETITOR_WEIGHT = 100


def run(bench: Bench) -> BenchReport:
    """Measure the training loop on 1 and 4 VMs, idle and beside hogs, the last of the 4 slowed by a competing task.

    Figures: `spread`, (max - min) / mean of records per device second over all undisturbed devices of all runs;
    `slowed_spread`, the same over the slowed one.
    """

    async def work(drives: RunningDrives) -> dict[str, Any]:
        sessions = await drives.prepare(bench.seed)
        samples: dict[str, Any] = {"undisturbed": {}, "slowed": {}}
        for hogs in (0, os.cpu_count() or 1):
            for devices in (1, DEVICES):
                bench.progress.stage(f"measure {devices} drives beside {hogs} hogs, {RUNS} times")
                with cpu_hogs(hogs):
                    await _measure_runs(sessions[:devices], hogs, samples)
        return samples

    samples = bench.on_machines(DEVICES, work)
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
