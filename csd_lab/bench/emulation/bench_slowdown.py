"""Cost of the agent, against a bare torch loop in the same VM."""

from __future__ import annotations

import statistics

from csd_emu.engines.qemu.qemu_engine import QemuEngine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import measure, prepare_sessions, report, with_array
from firmware_agent.common.frames.measure_frames import Measured
from host.fleet.lifecycle import StartedArray

RUNS = 3


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Run the agent's training loop and the bare loop in turn, in one VM.

    Figure: `agent_over_bare`, the ratio of the medians of records per second of the guest's own clock, over the whole
    loop: for the agent all between the phases counts too.
    """

    async def work(started: StartedArray, _: QemuEngine) -> dict[str, list[float]]:
        session = (await prepare_sessions(started, seed))[0]
        rates: dict[str, list[float]] = {"agent": [], "bare": []}
        for number in range(RUNS):
            for name in rates:
                progress.stage(f"{name} loop, run {number + 1} of {RUNS}")
                rates[name].append(_rate(await measure(session, bare=name == "bare")))
        return rates

    rates = with_array("slowdown", 1, paths, progress, seed, work)
    ratio = statistics.median(rates["agent"]) / statistics.median(rates["bare"])
    return report("slowdown", "counted", seed, {"agent_over_bare": ratio}, {"records_per_guest_second": rates})


def _rate(measured: Measured) -> float:
    return measured.samples / measured.elapsed_seconds
