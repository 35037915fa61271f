"""`csd-emu simulate --servers` from request to report."""

from __future__ import annotations

import time
from typing import get_args

import numpy as np

from csd_emu.config.servers_file import ServersConfig
from csd_emu.perfmodel.allreduce import ALGORITHMS
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.progress import Progress
from csd_lab.simulate.outages import Outages
from csd_lab.simulate.simulated_run import Competition
from csd_lab.simulate.simulation_figures import SimulatedClass, SimulatedRetune
from csd_lab.simulate.simulation_report import SIMULATED, assumptions, notes
from csd_lab.simulate.simulation_request import ServersRequest
from csd_lab.simulate.tree import Tree, make_tree
from csd_lab.simulate.tree_figures import (
    SimulatedTree,
    SimulateServersReport,
    TreeBytes,
    TreeLosses,
    TreeSeconds,
    TreeStepFigures,
)
from csd_lab.simulate.tree_run import PARTS, TreeTrace, simulate_tree
from csd_lab.simulate.tree_steps import TreeStepModel
from csd_lab.simulate.tree_tuner import make_tree_tuner
from host.core.device_time import MODELLED
from host.core.tuning.batch_tuner import Batches
from host.monitoring.report.comparison import AssumedFigure
from host.policies.batching.device_speeds import RatioName


def report_servers(request: ServersRequest, store: CalibrationStore, progress: Progress) -> SimulateServersReport:
    """Simulate a run of all servers, at each end of the hosts' band if any of them trains.

    Raises:
        CsdError: a table is missing, a batch does not fit, or a disturbance is of an unknown node.
    """
    begin, runs, remarks = time.monotonic(), [], []
    for ratio in _ratios(request):
        tree = make_tree(request.config, request.arrays, request.load, store, request.job.sync, ratio)
        progress.stage(f"simulate {request.steps} steps of {len(tree.servers)} servers, {len(tree.names)} nodes")
        trace = run_tree(request, tree)
        runs.append(describe_tree(tree, trace))
        remarks += [trace.ended] if trace.ended else []
    return SimulateServersReport(
        servers_file=request.config.name,
        model=request.job.model,
        tuner=request.tuner,
        servers=len(tree.servers),
        drives=tree.drives,
        hosts_train=tree.trains,
        steps=request.steps,
        reduce_every=tree.reduce_every,
        allreduce=tree.allreduce,
        clock=MODELLED,
        basis=SIMULATED,
        runs=runs,
        notes=list(dict.fromkeys([note for block in tree.blocks for note in notes(block.nodes)] + remarks)),
        assumed=_assumed(request.config, tree),
        wall_seconds=time.monotonic() - begin,
    )


def run_tree(request: ServersRequest, tree: Tree) -> TreeTrace:
    """Return the request's run; what fails is drawn by the job's seed."""
    job = request.job
    tuner = make_tree_tuner(job.tuner, tree, job.sync.tuning, job.batch_size, request.steps, request.plugin)
    outages = Outages(tree, request.config.failures, np.random.default_rng(job.seed))
    competition = Competition(tree, job.disturb)
    return simulate_tree(tree, tuner, competition, outages, request.steps, job.sync.tuning.cost_steps)


def describe_tree(tree: Tree, trace: TreeTrace) -> SimulatedTree:
    """Return the figures of a simulated run."""
    seconds, records = trace.seconds, int(trace.records.sum())
    parts = trace.parts.sum(axis=0)
    ideal = ideal_records_per_second(tree, trace.first)
    everyone = np.ones(len(tree.servers), bool)
    return SimulatedTree(
        ratio=tree.blocks[0].nodes.ratio,
        array_seconds=float(seconds.sum()),
        records=records,
        records_per_second=trace.records_per_second(),
        ideal_records_per_second=ideal,
        efficiency=trace.records_per_second() / ideal if ideal else 0.0,
        joules=trace.components,
        joules_per_record=float(trace.joules.sum()) / records if records else 0.0,
        step_seconds=[float(seconds.min()), float(np.median(seconds)), float(seconds.max())],
        seconds=TreeSeconds(*parts.tolist()),
        bytes=TreeBytes(*trace.bytes.sum(axis=0).tolist()),
        bottleneck=PARTS[int(parts.argmax())],
        next_bottleneck=PARTS[1 + int(parts[1:].argmax())],
        allreduce_seconds={name: tree.reduce(everyone, name).seconds for name in ALGORITHMS},
        losses=TreeLosses(*trace.losses),
        classes=_classes(tree, trace),
        retunes=[SimulatedRetune(step, retune.gain_steps, retune.reason) for step, retune in trace.retunes],
        steps=_steps(trace),
    )


def ideal_records_per_second(tree: Tree, batches: Batches) -> float:
    """Return the records per second of all servers if each trained alone, nobody slow and nothing lost."""
    model = TreeStepModel(tree)
    steps = model.cost(batches, np.ones(len(tree.names)))
    return float((steps.records / (steps.ready_seconds + model.optimiser_seconds)).sum())


def _ratios(request: ServersRequest) -> tuple[RatioName, ...]:
    trains = any(array.host.trains for array in request.arrays.values())
    return get_args(RatioName) if trains else ("middle",)


def _steps(trace: TreeTrace) -> list[TreeStepFigures]:
    columns = trace.seconds, trace.parts, trace.records, trace.joules, trace.bytes, trace.servers, trace.drives
    return [
        TreeStepFigures(seconds, TreeSeconds(*parts), int(records), joules, TreeBytes(*crossed), servers, drives)
        for seconds, parts, records, joules, crossed, servers, drives in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def _classes(tree: Tree, trace: TreeTrace) -> list[SimulatedClass]:
    classes, elapsed = [], float(trace.seconds.sum())
    for block in tree.blocks:
        for number, kind in enumerate(block.nodes.kinds):
            places = block.places[:, block.nodes.kind_of == number].ravel()
            if len(places):
                first, last = trace.first[places], trace.last[places]
                classes.append(
                    SimulatedClass(
                        profile=kind.profile.name,
                        nodes=len(places),
                        first_batches=[int(first.min()), int(first.max())],
                        last_batches=[int(last.min()), int(last.max())],
                        busy_share=float(trace.compute_seconds[places].mean()) / elapsed,
                        covered=kind.costs.covered,
                    )
                )
    return classes


def _assumed(config: ServersConfig, tree: Tree) -> list[AssumedFigure]:
    listed = [figure for block in tree.blocks for figure in assumptions(block.nodes)]
    if config.failures is not None:
        seconds, why = config.failures.rendezvous, "assumed: until a loss among real servers has been timed"
        listed.append(AssumedFigure(config.name, "failures.rendezvous", seconds, "s", why))
    return list({(figure.profile, figure.name): figure for figure in listed}.values())
