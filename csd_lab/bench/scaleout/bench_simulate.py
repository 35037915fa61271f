"""Time to simulate ten thousand drives for a thousand steps."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict

import numpy as np

from csd_emu.profiles.calibration import CalibrationStore
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, array_of
from csd_lab.simulate.nodes import Nodes, make_nodes
from csd_lab.simulate.simulated_baseline import host_alone
from csd_lab.simulate.simulated_run import SimulationTrace, simulate
from csd_lab.simulate.tree import array_tree
from csd_lab.simulate.tuners import make_tuner
from firmware_agent.common.models import ZOO, ModelSpec
from host.config.sync_section import SyncSection, TuningSection
from host.core.model_facts import inspect_load
from host.core.tuning.batch_tuner import Floats

DRIVES, STEPS, RUNS = 10_000, 1_000, 3
MODEL = "mobilenet_v2"
# Half of the drives are newport, a quarter each of the others.
DEVICES = [{"profile": name} for name in ("newport", "solana", "newport", "generic-a53")]
TUNING = TuningSection(slow_batch=8, largest_batch=4096)
# Of the changes: on average one per step somewhere, each a slowdown by this share, of so many steps on average.
LOST_SHARE, MEAN_STEPS = (0.2, 0.9), 100
# Every node's seconds vary by so much from step to step, so no step is like another.
JITTER = 0.01


def bench_simulate(bench: Bench) -> BenchReport:
    """Time to simulate ten thousand drives for a thousand steps.

    Simulate three times; HyperTune watches, drives are slowed down and recover, every step differs.

    Figure: `seconds`, the median of the wall seconds from the array's configuration to the figures of the run, the
    baseline included.
    """
    load = inspect_load(ModelSpec(MODEL), ZOO[MODEL].input_shape)
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
        trace = simulate(tree, tuner, Unrest(nodes, bench.seed), STEPS, TUNING.cost_steps)
        base = host_alone(nodes, int(trace.records.sum()))
        seconds.append(time.monotonic() - begin)
        cpu_seconds.append(time.process_time() - cpu)
        traces.append((trace, base.records_per_second))
    samples = {"wall_seconds": seconds, "cpu_seconds": cpu_seconds, **_described(*traces[-1])}
    return bench.report("wall", {"seconds": statistics.median(seconds)}, samples, engine="none")


class Unrest:
    """Slowdowns that begin at random, last for an exponential time, and jitter; asked for step by step."""

    def __init__(self, nodes: Nodes, seed: int) -> None:
        """Draw all changes beforehand."""
        self._generator = np.random.default_rng(seed)
        self._changes: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        self._nodes, self._levels = len(nodes.names), np.ones(len(nodes.names))
        begins = self._generator.integers(2, STEPS + 1, STEPS)
        which = self._generator.integers(0, self._nodes, STEPS)
        lost = self._generator.uniform(*LOST_SHARE, STEPS)
        lasting = 1 + self._generator.exponential(MEAN_STEPS, STEPS).astype(int)
        for begin, node, share, steps in zip(begins, which, lost, lasting, strict=True):
            self._changes[int(begin)].append((int(node), float(1 / (1 - share))))
            self._changes[int(begin + steps)].append((int(node), 1.0))

    def __call__(self, step: int) -> Floats:
        """Return the slowdowns of `step`."""
        for node, level in self._changes.get(step, ()):
            self._levels[node] = level
        return self._levels * (1 + JITTER * self._generator.uniform(-1, 1, self._nodes))


def _described(trace: SimulationTrace, baseline: float) -> dict[str, float]:
    """Return what shows that the run was one: the steps differ, and the tuner had something to do."""
    return {
        "distinct_steps": len(np.unique(trace.seconds)),
        "retunes": len(trace.retunes),
        "records_per_array_second": trace.records_per_second(),
        "baseline_records_per_array_second": baseline,
        "joules_per_record": trace.joules_per_record(),
    }
