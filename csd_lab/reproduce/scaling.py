"""Speed, energy and traffic against the number of computing drives, and against the batch. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from csd_lab.reproduce.hypertune_result import BatchEffect, Scaling
from csd_lab.reproduce.published_server import TUNING
from csd_lab.simulate.nodes import Nodes
from csd_lab.simulate.simulated_baseline import host_alone
from csd_lab.simulate.simulated_run import simulate
from csd_lab.simulate.simulation_figures import SimulatedBaseline
from csd_lab.simulate.step_model import StepModel
from csd_lab.simulate.tree import array_tree
from csd_lab.simulate.tuners import plan
from host.config.sync_section import TuningSection
from host.core.tuning.batch_tuner import Batches
from host.policies.batching.fixed import FixedBatches
from host.policies.batching.stannis import plan_batches

DRIVE_COUNTS = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36)
DRIVE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# So many that the baseline's first read, which nothing hides, does not show.
BASELINE_RECORDS = 1_000_000
KNEE, COMPUTE_ONLY, STANNIS = "knee", "stannis (compute only)", "stannis"


def scale(nodes: Nodes) -> Iterator[Scaling]:
    """Yield one row for each of `DRIVE_COUNTS`; STANNIS plans the batches anew for each."""
    base = host_alone(nodes, BASELINE_RECORDS)
    for drives in DRIVE_COUNTS:
        yield alone(nodes, base) if drives == 0 else measure(nodes, plan(array_tree(nodes), TUNING, drives), base)


def alone(nodes: Nodes, base: SimulatedBaseline) -> Scaling:
    """Return the row of the baseline."""
    return Scaling(
        model=nodes.load.spec.name,
        ratio=nodes.ratio,
        drives=0,
        drive_batch=0,
        host_batch=base.batch_size,
        step_seconds=base.batch_size / base.records_per_second,
        exchange_seconds=0.0,
        records_per_second=base.records_per_second,
        joules_per_record=base.joules_per_record,
        link_bytes_per_record=base.link_bytes_per_record,
        speedup=1.0,
        energy_factor=1.0,
        watts=base.joules_per_record * base.records_per_second,
    )


def measure(nodes: Nodes, batches: Batches, base: SimulatedBaseline) -> Scaling:
    """Return the row of (nodes,) `batches`, the last of them the host's; all steps are alike, so one is simulated."""
    tree = array_tree(nodes)
    step = simulate(tree, FixedBatches(batches), lambda _: np.ones(len(batches)), 1)
    records, seconds, joules = (float(each.sum()) for each in (step.records, step.seconds, step.joules))
    rate = records / seconds
    return Scaling(
        model=nodes.load.spec.name,
        ratio=nodes.ratio,
        drives=int(np.count_nonzero(batches[:-1])),
        drive_batch=int(batches[0]),
        host_batch=int(batches[-1]),
        step_seconds=seconds,
        exchange_seconds=StepModel(tree).sync_seconds(batches),
        records_per_second=rate,
        joules_per_record=joules / records,
        link_bytes_per_record=float(step.bytes[0, 0]) / records,
        speedup=rate / base.records_per_second,
        energy_factor=base.joules_per_record * records / joules,
        watts=joules / seconds,
    )


def vary_batch(nodes: Nodes) -> Iterator[BatchEffect]:
    """Yield one row for each of `DRIVE_BATCHES` with all drives, and those that the knee and STANNIS choose.

    STANNIS chooses twice: with the seconds of the exchange, and as if there were none.
    """
    base = host_alone(nodes, BASELINE_RECORDS)
    chosen: defaultdict[int, list[str]] = defaultdict(list)
    chosen[nodes.kinds[0].speed.knee(TUNING.knee)].append(KNEE)
    chosen[int(plan_batches(nodes.tables, TUNING).batches[0])].append(COMPUTE_ONLY)
    chosen[int(plan(array_tree(nodes), TUNING)[0])].append(STANNIS)
    for batch in sorted({*DRIVE_BATCHES, *chosen}):
        settings = TuningSection(slow_batch=batch, largest_batch=TUNING.largest_batch)
        row = measure(nodes, plan(array_tree(nodes), settings), base)
        yield BatchEffect(row, ", ".join(chosen.get(batch, ())))
