"""`csd-emu simulate` from request to report."""

from __future__ import annotations

import time
from typing import get_args

import numpy as np

from csd_emu.calibration import CalibrationStore
from csd_emu.host_node import MEMORY_BYTES_PER_SECOND
from csd_emu.progress import Progress
from host.device_time import MODELLED
from host.report.compare import list_assumptions
from host.report.comparison import AssumedFigure
from host.simulation.baseline import HostAlone, host_alone
from host.simulation.figures import (
    SimulatedBaseline,
    SimulatedClass,
    SimulatedRetune,
    SimulatedRun,
    SimulateReport,
)
from host.simulation.nodes import Nodes, make_nodes
from host.simulation.request import SimulationRequest
from host.simulation.run import Competition, Trace, simulate
from host.simulation.steps import StepModel
from host.simulation.tuners import make_tuner
from host.tuning.classes import RatioName

SIMULATED = "simulated"


def report_simulation(request: SimulationRequest, store: CalibrationStore, progress: Progress) -> SimulateReport:
    """Simulate a run at each end of the host's band.

    Raises:
        CsdError: a table is missing, a batch does not fit, or a disturbance is of an unknown node.
    """
    begin = time.monotonic()
    job, runs = request.job, []
    trace: Trace | None = None
    for ratio in get_args(RatioName):
        nodes = make_nodes(request.config, request.load, store, job.sync, ratio, request.drives)
        if trace is None or nodes.trains:  # a host that does not train is as slow as it likes
            progress.stage(f"simulate {request.steps} steps of {len(nodes.names)} nodes, ratio {nodes.ratio:g}")
            tuner = make_tuner(request.tuner, nodes, job.sync.tuning, job.batch_size, request.steps, request.plugin)
            cost = job.sync.tuning.cost_steps
            trace = simulate(nodes, tuner, Competition(nodes, job.disturb), request.steps, cost)
        runs.append(describe(nodes, trace))
    return SimulateReport(
        array=request.config.name,
        model=job.model,
        tuner=request.tuner,
        drives=nodes.drives,
        host_trains=nodes.trains,
        steps=request.steps,
        clock=MODELLED,
        basis=SIMULATED,
        runs=runs,
        notes=notes(nodes),
        assumed=assumptions(nodes),
        wall_seconds=time.monotonic() - begin,
    )


def describe(nodes: Nodes, trace: Trace) -> SimulatedRun:
    """Return the figures of a simulated run beside those of the host alone on as many records."""
    images = int(trace.images.sum())
    base = host_alone(nodes, images)
    return SimulatedRun(
        ratio=nodes.ratio,
        array_seconds=float(trace.seconds.sum()),
        images=images,
        images_per_second=trace.images_per_second(),
        joules=trace.components,
        joules_per_image=trace.joules_per_image(),
        link_bytes_per_image=trace.link_bytes_per_image(),
        step_seconds=[float(trace.seconds.min()), float(np.median(trace.seconds)), float(trace.seconds.max())],
        exchange_seconds=StepModel(nodes).sync_seconds(np.minimum(trace.first, 1)),
        classes=_classes(nodes, trace),
        retunes=[SimulatedRetune(step, retune.gain_steps, retune.reason) for step, retune in trace.retunes],
        baseline=_baseline(base),
        speedup=trace.images_per_second() / base.images_per_second,
        energy_factor=base.joules_per_image / trace.joules_per_image(),
    )


def assumptions(nodes: Nodes) -> list[AssumedFigure]:
    """Return the assumed figures of all profiles, and of the host's part in a step."""
    memory = MEMORY_BYTES_PER_SECOND
    listed = list_assumptions([kind.profile for kind in nodes.kinds])
    host = nodes.host.profile.name
    return [*listed, AssumedFigure(host, "memory_bytes_per_second", memory.value, "B/s", memory.source)]


def _baseline(base: HostAlone) -> SimulatedBaseline:
    return SimulatedBaseline(base.batch_size, base.images_per_second, base.joules_per_image, base.link_bytes_per_image)


def _classes(nodes: Nodes, trace: Trace) -> list[SimulatedClass]:
    classes, elapsed = [], float(trace.seconds.sum())
    for number, kind in enumerate(nodes.kinds):
        own = nodes.kind_of == number
        if own.any():
            first, last = trace.first[own], trace.last[own]
            classes.append(
                SimulatedClass(
                    profile=kind.profile.name,
                    nodes=int(own.sum()),
                    first_batches=[int(first.min()), int(first.max())],
                    last_batches=[int(last.min()), int(last.max())],
                    busy_share=float(trace.compute_seconds[own].mean()) / elapsed,
                    covered=kind.costs.covered,
                )
            )
    return classes


def notes(nodes: Nodes) -> list[str]:
    """Return what to know when reading figures of these nodes."""
    found = ["simulated: seconds come from calibration tables, bytes from the model's size; nothing was trained"]
    for kind in nodes.kinds:
        if not kind.costs.covered:
            found.append(
                f"{kind.profile.name}: computes up to {kind.costs.micro_batch} records at once, of which calibration "
                "has run no kernels; set sync.micro_batch to a batch that was measured, or calibrate a larger one"
            )
    return found
