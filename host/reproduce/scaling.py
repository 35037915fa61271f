"""Speed, energy and traffic against the number of computing drives, and against the batch. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from host.reproduce.figures import BatchEffect, Scaling
from host.reproduce.server import TUNING
from host.simulation.baseline import HostAlone, host_alone
from host.simulation.nodes import Nodes
from host.simulation.steps import StepModel
from host.simulation.tuners import plan
from host.sync.sections import TuningSection
from host.tuning.base import Batches
from host.tuning.stannis import plan_batches

DRIVE_COUNTS = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36)
DRIVE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# So many that the baseline's first read, which nothing hides, does not show.
BASELINE_IMAGES = 1_000_000
KNEE, COMPUTE_ONLY, STANNIS = "knee", "stannis (compute only)", "stannis"


def scale(nodes: Nodes) -> Iterator[Scaling]:
    """Yield one row for each of `DRIVE_COUNTS`; STANNIS plans the batches anew for each."""
    base = host_alone(nodes, BASELINE_IMAGES)
    for drives in DRIVE_COUNTS:
        yield alone(nodes, base) if drives == 0 else measure(nodes, plan(nodes, TUNING, drives), base)


def alone(nodes: Nodes, base: HostAlone) -> Scaling:
    """Return the row of the baseline."""
    return Scaling(
        model=nodes.load.spec.name,
        ratio=nodes.ratio,
        drives=0,
        drive_batch=0,
        host_batch=base.batch_size,
        step_seconds=base.batch_size / base.images_per_second,
        exchange_seconds=0.0,
        images_per_second=base.images_per_second,
        joules_per_image=base.joules_per_image,
        link_bytes_per_image=base.link_bytes_per_image,
        speedup=1.0,
        energy_factor=1.0,
        watts=base.watts,
    )


def measure(nodes: Nodes, batches: Batches, base: HostAlone) -> Scaling:
    """Return the row of (nodes,) `batches`, the last of them the host's; all steps are alike, so one is composed."""
    model = StepModel(nodes)
    cost = model.cost(batches, np.ones(len(batches)))
    rate, joules = cost.images / cost.seconds, sum(cost.joules.values())
    return Scaling(
        model=nodes.load.spec.name,
        ratio=nodes.ratio,
        drives=int(np.count_nonzero(batches[:-1])),
        drive_batch=int(batches[0]),
        host_batch=int(batches[-1]),
        step_seconds=cost.seconds,
        exchange_seconds=model.sync_seconds(np.minimum(batches, 1)),
        images_per_second=rate,
        joules_per_image=joules / cost.images,
        link_bytes_per_image=cost.link_bytes / cost.images,
        speedup=rate / base.images_per_second,
        energy_factor=base.joules_per_image * cost.images / joules,
        watts=joules / cost.seconds,
    )


def vary_batch(nodes: Nodes) -> Iterator[BatchEffect]:
    """Yield one row for each of `DRIVE_BATCHES` with all drives, and those that the knee and STANNIS choose.

    STANNIS chooses twice: with the seconds of the exchange, and as if there were none.
    """
    base = host_alone(nodes, BASELINE_IMAGES)
    chosen: defaultdict[int, list[str]] = defaultdict(list)
    chosen[nodes.kinds[0].speed.knee(TUNING.knee)].append(KNEE)
    chosen[int(plan_batches(nodes.tables, TUNING).batches[0])].append(COMPUTE_ONLY)
    chosen[int(plan(nodes, TUNING, nodes.drives)[0])].append(STANNIS)
    for batch in sorted({*DRIVE_BATCHES, *chosen}):
        settings = TuningSection(slow_batch=batch, largest_batch=TUNING.largest_batch)
        row = measure(nodes, plan(nodes, settings, nodes.drives), base)
        yield BatchEffect(row, ", ".join(chosen.get(batch, ())))
