"""Time until an array is there."""

from __future__ import annotations

import contextlib
import statistics
from typing import Any

from csd_emu.engines import make_engine
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, RunningDrives, array_of
from host.fleet.lifecycle import StartTimes

DEVICES = 8


def run(bench: Bench) -> BenchReport:
    """Make the template anew, then start 8 drives together and wait for the last hello. Wall seconds.

    Figures: `array_seconds` from the first start to the last hello, template not included; `clone_seconds_median` of
    one drive, from its own start to its hello; `template_seconds`.
    """
    machines: Any = make_engine(array_of(bench.name, DEVICES), bench.paths)
    with contextlib.closing(machines):
        template_seconds = machines.remake_template(bench.progress)

    async def work(drives: RunningDrives) -> StartTimes:
        return drives.started.times

    times = bench.on_machines(DEVICES, work)
    figures = {
        "array_seconds": times.array_seconds,
        "clone_seconds_median": statistics.median(times.device_seconds.values()),
        "template_seconds": template_seconds,
    }
    return bench.report("wall", figures, {"clone_seconds": times.device_seconds})
