"""Time to simulate a thousand servers of 36 drives for a hundred steps."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.servers_file import ServersConfig
from csd_emu.profiles.calibration.table_store import SHIPPED, CalibrationStore
from csd_lab.simulate.outages import Outages
from csd_lab.simulate.simulated_run import SimulationTrace, simulate
from csd_lab.simulate.simulation_report import describe_tree
from csd_lab.simulate.slowdown_traces import RandomSlowdowns
from csd_lab.simulate.tree import Tree, make_tree
from csd_lab.simulate.tuners import make_tuner
from firmware_agent.common.models import ZOO
from firmware_agent.common.shipped_code import ShippedCode
from host.config.sync_section import SyncSection, TuningSection
from host.core.model_facts import Load, inspect_load

SERVERS, DRIVES, STEPS, RUNS = 1_000, 36, 100, 3
MODEL = "mobilenet_v2"
TUNING = TuningSection(slow_batch=8, largest_batch=4096)
# Racks of 40 with four times as much link as uplink. Servers fail so often that some do in a hundred steps.
SERVERS_FILE: dict[str, Any] = {
    "name": "hall",
    "racks": {"servers": 40, "oversubscription": 4},
    "failures": {"server_mtbf": "50 h", "server_repair": "10 min", "drive_mtbf": "100 h", "drive_repair": "10 min"},
}
ARRAY = {
    "name": "hall",
    "engine": "native",
    "host": {"trains": True},
    "devices": [{"profile": "newport", "count": DRIVES // 2}, {"profile": "solana", "count": DRIVES // 2}],
}
# Of a slowdown; one begins in each step somewhere. All nodes' seconds vary, so no step and no server is like another.
MEAN_STEPS = 20


def measure(seed: int, servers: int = SERVERS, steps: int = STEPS, runs: int = RUNS) -> dict[str, float]:
    """Simulate 36,000 drives and 1,000 hosts for 100 steps, three times; HyperTune watches, what can fail does.

    Returns:
        `simulate_36000_drives_seconds`: median of the wall seconds from the files' contents to the figures of the run;
        reading the calibration table and building the model are not in it. Beside it each run's wall seconds
        (`wall_seconds_0`...), and what shows that the last run was one.
    """
    load, store = inspect_load(ShippedCode(MODEL), ZOO[MODEL].input_shape), CalibrationStore(SHIPPED)
    seconds, found = [], {}
    for number in range(runs):
        begin = time.monotonic()
        tree, trace = _run(load, store, seed, servers, steps)
        figures = describe_tree(tree, trace)
        seconds.append(time.monotonic() - begin)
        found[f"wall_seconds_{number}"] = seconds[-1]
    found |= {
        "nodes": len(tree.names),
        "distinct_steps": len(np.unique(trace.seconds)),
        "retunes": len(trace.retunes),
        "servers_lost": figures.losses.servers_lost,
        "drives_lost": figures.losses.drives_lost,
        "records_per_array_second": figures.records_per_second,
        "efficiency": figures.efficiency,
    }
    return {"simulate_36000_drives_seconds": statistics.median(seconds), **found}


def _run(load: Load, store: CalibrationStore, seed: int, servers: int, steps: int) -> tuple[Tree, SimulationTrace]:
    group = {"name": "srv", "array": "array.yaml", "count": servers}
    config, array = ServersConfig.model_validate(SERVERS_FILE | {"servers": [group]}), ArrayConfig.model_validate(ARRAY)
    tree = make_tree(config, {"array.yaml": array}, load, store, SyncSection(micro_batch=4, tuning=TUNING))
    generator = np.random.default_rng(seed)
    outages = Outages(tree, config.failures, generator)
    tuner = make_tuner("hypertune", tree, TUNING, 1, steps)
    slowdowns = RandomSlowdowns(len(tree.names), MEAN_STEPS, generator)
    return tree, simulate(tree, tuner, slowdowns, steps, TUNING.cost_steps, outages)
