"""HyperTune and others over a thousand synthetic histories, against what was possible."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from csd_emu.perfmodel.host_node import link_of
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration.table_store import SHIPPED, CalibrationStore, CoreModel
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, array_of, spread_over
from csd_lab.bench.training.tuning_baselines import LoadBalanced, Policy, Proportional, Static
from csd_lab.bench.training.tuning_simulation import Scenario, oracle, simulate
from csd_lab.simulate.slowdown_traces import SlowdownProcess, draw_traces
from csd_lab.tune.equal_batches import plan_equal
from firmware_agent.common.shipped_code import ShippedCode
from host.config.sync_section import SyncSection, TuningSection
from host.policies.batching.device_speeds import device_classes
from host.policies.batching.hypertune_rule import Retuner
from host.policies.batching.retune_rules import RetuneRules
from host.policies.batching.stannis import plan_batches

TRACES, CHUNK, PROCESSES = 1000, 125, 2
# Variants, which no figure is of, are shown on the first so many.
VARIANT_TRACES = 250
DRIVES = 36
MODEL, SHAPE = ShippedCode("mobilenet_v2"), (3, 224, 224)
PARAMETERS = 3_504_872
CORE_MODEL: CoreModel = "cycles"
SLOW_BATCH = 32
COST_STEPS = 1.0
STRAGGLER_FACTOR = 1.25
TRACE_PROCESS = SlowdownProcess()


@dataclass(frozen=True)
class TuningContender:
    """One way to train through a trace.

    Attributes:
        make: the policy for so many traces.
        straggler_factor: see `csd_lab.bench.training.tuning_simulation.wait`.
        charged: whether its retunes cost anything.
        stops: whether late devices give up their batch.
        traces: how many of the traces it goes through.
    """

    make: Callable[[int], Policy]
    straggler_factor: float | None = None
    charged: bool = True
    stops: bool = False
    traces: int = TRACES


def bench_hypertune_sim(bench: Bench) -> BenchReport:
    """HyperTune and others over a thousand synthetic histories, against what was possible.

    Simulate 1,000 traces of 2,000 steps with 36 drives and the host, for HyperTune and for what it is compared with.

    Figures: `mean_over_oracle`, HyperTune's records per second over those of an oracle that knows each step's speeds
    and retunes free, mean of all traces, with `sync.straggler_factor` 1.25 as runs do it: a late device gives up at the
    deadline; `at_least_static`, share of the traces in which it is no slower than STANNIS' batches that stay as they
    are; `mean_over_oracle_waiting`, without patience, as by default: every device is waited for. Clock: modelled,
    with the cycles of the drives' cores.
    """
    began = time.monotonic()
    chunks = [(bench.seed, first, min(CHUNK, TRACES - first)) for first in range(0, TRACES, CHUNK)]
    parts: list[dict[str, dict[str, list[float]]]] = []
    bench.progress.stage(f"{TRACES} traces of {TRACE_PROCESS.steps} steps")
    with spread_over(PROCESSES) as spread:
        for part in spread(_chunk, chunks):
            parts.append(part)
            bench.progress.advance(len(parts) / len(chunks))
    traces = _join(parts)
    table = {name: _summary(values, traces) for name, values in traces.items() if name != "oracle"}
    own = table["hypertune"]
    figures = {
        "mean_over_oracle": own["mean_over_oracle"],
        "at_least_static": own["at_least_static"],
        "mean_over_oracle_waiting": table["hypertune, waits for all"]["mean_over_oracle"],
    }
    samples = {
        "scenario": _describe(),
        "policies": table,
        "traces": traces,
        "wall_seconds": time.monotonic() - began,
    }
    return bench.report("modelled", figures, samples, "native")


@cache
def scenario() -> Scenario:
    """Return the array: Newport drives and the host at the middle of its ratio, with STANNIS' batches."""
    config = array_of("hypertune-sim", DRIVES, "native", host={"trains": True}, core_model=CORE_MODEL)
    sync = SyncSection(tuning=TuningSection(slow_batch=SLOW_BATCH, largest_batch=4096))
    classes = device_classes(config, CalibrationStore(SHIPPED, core_model=CORE_MODEL).of(MODEL, SHAPE), sync)
    tables = [known.speed for known in classes.values()]
    link = link_of(config.link, get_profile(config.host.profile))
    # Weights to all drives, gradients from them, through the host's end of the link.
    sync_seconds = 2 * float(link.carry_together(np.full(DRIVES, 4.0 * PARAMETERS)).max())
    return Scenario(tables, plan_batches(tables, sync.tuning, sync_seconds).batches, sync_seconds, COST_STEPS)


def contenders() -> dict[str, TuningContender]:
    """Return who takes part; the first one is what the figures are of."""
    known = scenario()
    tables, plan = known.tables, known.batches
    equal = plan_equal(tables, int(plan.sum()), known.sync_seconds).batches
    balanced = partial(LoadBalanced, tables, plan)
    variant = partial(TuningContender, traces=VARIANT_TRACES)
    return {
        "hypertune": TuningContender(_hypertune, STRAGGLER_FACTOR, stops=True),
        "hypertune, waits for all": TuningContender(_hypertune),
        "static": TuningContender(partial(Static, tables, plan)),
        "equal": TuningContender(partial(Static, tables, equal)),
        "lb_bsp": TuningContender(partial(balanced, dead_band=0.1, memory=0.0)),
        "proportional": TuningContender(partial(Proportional, tables, plan, dead_band=0.1, memory=0.0, gain=0.9)),
        "hypertune, late devices compute on": variant(_hypertune, STRAGGLER_FACTOR),
        "hypertune, patience 1.5": variant(_hypertune, 1.5),
        "static, patience 1.25": variant(partial(Static, tables, plan), STRAGGLER_FACTOR),
        "lb_bsp, free": variant(partial(balanced, dead_band=0.0, memory=0.0), charged=False),
    }


def _hypertune(rows: int) -> Policy:
    known, steps = scenario(), TRACE_PROCESS.steps
    rules = RetuneRules(cost_steps=COST_STEPS)
    return Retuner(known.tables, known.batches, rules, steps, known.sync_seconds, rows)


def _chunk(task: tuple[int, int, int]) -> dict[str, dict[str, list[float]]]:
    """Return what came of traces `first` to `first + count`, per contender, and of the oracle."""
    seed, first, count = task
    known, traces = scenario(), draw_traces(seed, first, count, TRACE_PROCESS)
    sums = [(float(records.sum()), float(seconds.sum())) for records, seconds in (oracle(known, t) for t in traces)]
    found = {
        "oracle": {
            "rate": [records / seconds for records, seconds in sums],
            "changes": [float(trace.changes) for trace in traces],
        }
    }
    for name, contender in contenders().items():
        if first >= contender.traces:
            continue
        rules = contender.straggler_factor, contender.charged, contender.stops
        outcome = simulate(known, traces, contender.make(count), *rules)
        found[name] = {
            "rate": outcome.rates.tolist(),
            "retunes": outcome.retunes.tolist(),
            "retune_share": (outcome.retune_seconds / outcome.seconds).tolist(),
            "dropped_share": (outcome.dropped / (outcome.records + outcome.dropped)).tolist(),
        }
    return found


def _join(parts: Sequence[Mapping[str, Mapping[str, list[float]]]]) -> dict[str, dict[str, list[float]]]:
    return {
        name: {kind: [value for part in parts if name in part for value in part[name][kind]] for kind in kinds}
        for name, kinds in parts[0].items()
    }


def _summary(values: Mapping[str, list[float]], traces: Mapping[str, Mapping[str, list[float]]]) -> dict[str, float]:
    each = (values, traces["oracle"], traces["static"])
    rates, best, static = (np.array(one["rate"][: len(values["rate"])]) for one in each)
    return {
        "traces": len(rates),
        "mean_over_oracle": float((rates / best).mean()),
        "worst_over_oracle": float((rates / best).min()),
        "at_least_static": float((rates >= static).mean()),
        "over_static_mean": float((rates / static).mean()),
        "retunes_mean": float(np.mean(values["retunes"])),
        "retune_share_mean": float(np.mean(values["retune_share"])),
        "dropped_share_mean": float(np.mean(values["dropped_share"])),
    }


def _describe() -> dict[str, Any]:
    known = scenario()
    seconds = [table.seconds(int(batch)) for table, batch in zip(known.tables, known.batches, strict=True)]
    return {
        "model": MODEL.name,
        "core_model": CORE_MODEL,
        "batches": {"drive": int(known.batches[0]), "host": int(known.batches[-1])},
        "compute_seconds": {"drive": seconds[0], "host": seconds[-1]},
        "sync_seconds": known.sync_seconds,
        "cost_steps": known.cost_steps,
        "weather": asdict(TRACE_PROCESS),
    }
