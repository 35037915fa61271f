"""`csd-emu simulate` from request to report."""

from __future__ import annotations

import time
from typing import get_args

import numpy as np

from csd_emu.perfmodel.host_node import MEMORY_BYTES_PER_SECOND
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.progress import Progress
from csd_lab.simulate.nodes import Nodes, make_nodes
from csd_lab.simulate.simulated_baseline import HostAlone, host_alone
from csd_lab.simulate.simulated_run import Competition, SimulationTrace, simulate
from csd_lab.simulate.simulated_steps import ArrayStepModel
from csd_lab.simulate.simulation_figures import (
    SimulatedBaseline,
    SimulatedClass,
    SimulatedRetune,
    SimulatedRun,
    SimulateReport,
)
from csd_lab.simulate.simulation_request import SimulationRequest
from csd_lab.simulate.tuners import make_tuner
from host.core.device_time import MODELLED
from host.monitoring.report.compare_baseline import list_assumptions
from host.monitoring.report.comparison import AssumedFigure
from host.policies.batching.device_speeds import RatioName

SIMULATED = "simulated"


def report_simulation(request: SimulationRequest, store: CalibrationStore, progress: Progress) -> SimulateReport:
    """Simulate a run at each end of the host's band.

    Raises:
        CsdError: a table is missing, a batch does not fit, or a disturbance is of an unknown node.
    """
    begin = time.monotonic()
    job, runs = request.job, []
    trace: SimulationTrace | None = None
    for ratio in get_args(RatioName):
        nodes = make_nodes(request.config, request.load, store, job.sync, ratio, request.drives)
        if trace is None or nodes.trains:  # a host that does not train is as slow as it likes
            progress.stage(f"simulate {request.steps} steps of {len(nodes.names)} nodes, ratio {nodes.ratio:g}")
            tuner = make_tuner(job.tuner, nodes, job.sync.tuning, job.batch_size, request.steps, request.plugin)
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


def describe(nodes: Nodes, trace: SimulationTrace) -> SimulatedRun:
    """Return the figures of a simulated run beside those of the host alone on as many records."""
    records = int(trace.records.sum())
    base = host_alone(nodes, records)
    return SimulatedRun(
        ratio=nodes.ratio,
        array_seconds=float(trace.seconds.sum()),
        records=records,
        records_per_second=trace.records_per_second(),
        joules=trace.components,
        joules_per_record=trace.joules_per_record(),
        link_bytes_per_record=trace.link_bytes_per_record(),
        step_seconds=[float(trace.seconds.min()), float(np.median(trace.seconds)), float(trace.seconds.max())],
        exchange_seconds=ArrayStepModel(nodes).sync_seconds(np.minimum(trace.first, 1)),
        classes=_classes(nodes, trace),
        retunes=[SimulatedRetune(step, retune.gain_steps, retune.reason) for step, retune in trace.retunes],
        baseline=_baseline(base),
        speedup=trace.records_per_second() / base.records_per_second,
        energy_factor=base.joules_per_record / trace.joules_per_record(),
    )


def assumptions(nodes: Nodes) -> list[AssumedFigure]:
    """Return the assumed figures of all profiles, and of the host's part in a step."""
    memory = MEMORY_BYTES_PER_SECOND
    listed = list_assumptions([kind.profile for kind in nodes.kinds])
    host = nodes.host.profile.name
    return [*listed, AssumedFigure(host, "memory_bytes_per_second", memory.value, "B/s", memory.source)]


def _baseline(base: HostAlone) -> SimulatedBaseline:
    return SimulatedBaseline(
        base.batch_size, base.records_per_second, base.joules_per_record, base.link_bytes_per_record
    )


def _classes(nodes: Nodes, trace: SimulationTrace) -> list[SimulatedClass]:
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
