"""Balance of a step between unequal drives and their host, with STANNIS's batches."""

from __future__ import annotations

import statistics

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, array_of
from csd_lab.bench.training.synchronous import imbalance, run_one_round, step_samples, sync_request

CLOCK = "counted+modelled"
PROFILES = ("newport", "solana", "generic-a53")
# The first steps are not counted: in them the drives' processes take their memory from the kernel.
WARM_UP_STEPS, STEPS = 3, 12


def run(bench: Bench) -> BenchReport:
    """Train synchronously with STANNIS' batches on one VM of each of three profiles, and on the host.

    Figure: `step_imbalance`, the largest (max - min) / max of the compute seconds (forward, backward, encoding) of a
    step's participants, over all steps but the first few. The drives' seconds are counted, the host's modelled.
    """
    request = sync_request(
        array_of(bench.name, [{"profile": profile} for profile in PROFILES], host={"trains": True}),
        {"tuner": "stannis", "rounds": 1, "sync": {"round_steps": WARM_UP_STEPS + STEPS}},
        bench.seed,
    )
    record = run_one_round(request, bench)
    found = [imbalance(step) for step in record.steps[WARM_UP_STEPS:]]
    figures = {"step_imbalance": max(found), "step_imbalance_median": statistics.median(found)}
    return bench.report(CLOCK, figures, {"steps": step_samples(record.steps)})
