"""Cost of the agent, against a bare torch loop in the same VM."""

from __future__ import annotations

import statistics

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, RunningDrives, measure

RUNS = 3


def run(bench: Bench) -> BenchReport:
    """Run the agent's training loop and the bare loop in turn, in one VM.

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
