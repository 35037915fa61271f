"""Time until an array is there."""

from __future__ import annotations

import contextlib
import statistics

from csd_emu.engines.qemu.qemu_engine import QemuEngine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import bench_config, report, with_array
from host.fleet.lifecycle import StartedArray, StartTimes

DEVICES = 8


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Make the template anew, then start 8 drives together and wait for the last hello. Wall seconds.

    Figures: `array_seconds` from the first start to the last hello, template not included; `clone_seconds_median` of
    one drive, from its own start to its hello; `template_seconds`.
    """
    with contextlib.closing(QemuEngine(bench_config("startup", DEVICES), paths)) as engine:
        template_seconds = engine.remake_template(progress)

    async def work(started: StartedArray, _: QemuEngine) -> StartTimes:
        return started.times

    times = with_array("startup", DEVICES, paths, progress, seed, work)
    figures = {
        "array_seconds": times.array_seconds,
        "clone_seconds_median": statistics.median(times.device_seconds.values()),
        "template_seconds": template_seconds,
    }
    return report("startup", "wall", seed, figures, {"clone_seconds": times.device_seconds})
