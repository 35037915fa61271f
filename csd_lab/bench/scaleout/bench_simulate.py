"""Time to simulate ten thousand drives for a thousand steps."""

from __future__ import annotations

import statistics
import time

import numpy as np

from csd_emu.profiles.calibration import CalibrationStore
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, array_of
from csd_lab.simulate.nodes import make_nodes
from csd_lab.simulate.simulated_baseline import host_alone
from csd_lab.simulate.simulated_run import SimulationTrace, simulate
from csd_lab.simulate.slowdown_traces import RandomSlowdowns
from csd_lab.simulate.tree import array_tree
from csd_lab.simulate.tuners import make_tuner
from firmware_agent.common.models import ZOO
from firmware_agent.common.shipped_code import ShippedCode
from host.config.sync_section import SyncSection, TuningSection
from host.core.model_facts import inspect_load

DRIVES, STEPS, RUNS = 10_000, 1_000, 3
MODEL = "mobilenet_v2"
# Half of the drives are newport, a quarter each of the others.
DEVICES = [{"profile": name} for name in ("newport", "solana", "newport", "generic-a53")]
TUNING = TuningSection(slow_batch=8, largest_batch=4096)
# Of a slowdown; one begins in each step somewhere. All nodes' seconds vary, so no step is like another.
MEAN_STEPS = 100


def bench_simulate(bench: Bench) -> BenchReport:
    """Time to simulate ten thousand drives for a thousand steps.

    Simulate three times; HyperTune watches, drives are slowed down and recover, every step differs.

    Figure: `seconds`, the median of the wall seconds from the array's configuration to the figures of the run, the
    baseline included.
    """
    load = inspect_load(ShippedCode(MODEL), ZOO[MODEL].input_shape)
    store = CalibrationStore(bench.paths.calibration)
    seconds, cpu_seconds, traces = [], [], []
    for number in range(RUNS):
        bench.progress.stage(f"simulate {DRIVES} drives for {STEPS} steps, run {number + 1} of {RUNS}")
        begin, cpu = time.monotonic(), time.process_time()
        config = array_of(bench.name, DEVICES, "native", host={"trains": True})
        sync = SyncSection(micro_batch=4, tuning=TUNING)
        nodes = make_nodes(config, load, store, sync, drives=DRIVES)
        tree = array_tree(nodes)
        tuner = make_tuner("hypertune", tree, TUNING, 1, STEPS)
        slowdowns = RandomSlowdowns(len(nodes.names), MEAN_STEPS, np.random.default_rng(bench.seed))
        trace = simulate(tree, tuner, slowdowns, STEPS, TUNING.cost_steps)
        base = host_alone(nodes, int(trace.records.sum()))
        seconds.append(time.monotonic() - begin)
        cpu_seconds.append(time.process_time() - cpu)
        traces.append((trace, base.records_per_second))
    samples = {"wall_seconds": seconds, "cpu_seconds": cpu_seconds, **_described(*traces[-1])}
    return bench.report("wall", {"seconds": statistics.median(seconds)}, samples, engine="none")


def _described(trace: SimulationTrace, baseline: float) -> dict[str, float]:
    """Return what shows that the run was one: the steps differ, and the tuner had something to do."""
    return {
        "distinct_steps": len(np.unique(trace.seconds)),
        "retunes": len(trace.retunes),
        "records_per_array_second": trace.records_per_second(),
        "baseline_records_per_array_second": baseline,
        "joules_per_record": trace.joules_per_record(),
    }
