"""`csd-emu simulate` from request to report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar, get_args

import msgspec.structs
import numpy as np

from csd_emu.config.servers_file import ServersConfig
from csd_emu.perfmodel.host_node import MEMORY_BYTES_PER_SECOND
from csd_emu.perfmodel.power import CHASSIS, COMPONENTS
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.profile import End, RatioName
from csd_emu.util.progress import Progress
from csd_lab.simulate.nodes import Nodes
from csd_lab.simulate.outages import Outages
from csd_lab.simulate.rack_allreduce import ALGORITHMS
from csd_lab.simulate.simulated_baseline import host_alone
from csd_lab.simulate.simulated_run import PARTS, Competition, SimulationTrace, simulate
from csd_lab.simulate.simulation_figures import (
    SimulatedClass,
    SimulatedRetune,
    SimulatedRun,
    SimulatedTree,
    SimulateReport,
    SimulateServersReport,
    TreeBytes,
    TreeLosses,
    TreeSeconds,
    TreeStepFigures,
)
from csd_lab.simulate.simulation_request import SimulationRequest
from csd_lab.simulate.tree import Tree
from csd_lab.simulate.tree_steps import TreeStepModel
from csd_lab.simulate.tuners import make_tuner
from host.core.device_time import MODELLED
from host.core.figure_bands import span_of
from host.core.tuning.batch_tuner import Batches
from host.monitoring.report.compare_baseline import list_assumptions
from host.monitoring.report.comparison import AssumedFigure

SIMULATED = "simulated"
_Run = tuple[Tree, SimulationTrace]
_T = TypeVar("_T", SimulatedRun, SimulatedTree)


def report_simulation(
    request: SimulationRequest, store: CalibrationStore, progress: Progress
) -> SimulateReport | SimulateServersReport:
    """Simulate a run at each end of the host's band.

    Raises:
        CsdError: a table is missing, a batch does not fit, or a disturbance is of an unknown node.
    """
    begin, config = time.monotonic(), request.config
    ratios = _ratios(request)
    done: list[_Run] = []
    for ratio in ratios:
        tree = request.tree(store, ratio)
        if not done or tree.trains:  # a host that does not train is as slow as it likes
            progress.stage(f"simulate {request.steps} steps of {len(tree.names)} nodes, ratio {tree.ratio:g}")
            trace = run_request(request, tree)
        done.append((tree, trace))
    remarks = [note for block in tree.blocks for note in notes(block.nodes)]
    both: dict[str, Any] = {
        "model": request.job.model,
        "tuner": request.job.tuner_name,
        "drives": int(tree.is_drive.sum()),
        "steps": request.steps,
        "clock": MODELLED,
        "core_model": "+".join(sorted({array.core_model for array in request.arrays.values()})),
        "basis": SIMULATED,
        "notes": list(dict.fromkeys(remarks + [trace.ended for _, trace in done if trace.ended])),
        "assumed": _assumed(config, tree),
    }
    ends = list(_simulate_ends(request, store, progress))
    if config is None:
        return SimulateReport(
            array=request.name,
            host_trains=tree.trains,
            runs=_describe(describe_array, done, ends),
            wall_seconds=time.monotonic() - begin,
            **both,
        )
    return SimulateServersReport(
        servers_file=request.name,
        servers=tree.count,
        hosts_train=tree.trains,
        reduce_every=config.reduce_every,
        allreduce=tree.racks.allreduce,
        runs=_describe(describe_tree, done, ends),
        wall_seconds=time.monotonic() - begin,
        **both,
    )


def _simulate_ends(request: SimulationRequest, store: CalibrationStore, progress: Progress) -> Iterator[_Run]:
    """Yield the run of the middle ratio again, at each end of the bands of the profiles' figures."""
    for end in get_args(End):
        progress.stage(f"simulate with the profiles' figures at the {end} end of their bands")
        tree = request.tree(store, "middle", end)
        yield tree, run_request(request, tree)


def _describe(describe: Callable[[Tree, SimulationTrace], _T], done: Sequence[_Run], ends: Sequence[_Run]) -> list[_T]:
    """Return the figures of all runs; the middle one has bands, from what it is at the `ends`."""
    runs, middle = [describe(*run) for run in done], len(done) // 2
    each = [_figures(run) for run in runs[middle : middle + 1] + [describe(*run) for run in ends]]
    bands = {name: span_of(values[name] for values in each) for name in each[0]}
    runs[middle] = msgspec.structs.replace(runs[middle], bands=bands)
    return runs


def _figures(run: SimulatedRun | SimulatedTree) -> dict[str, float]:
    """Return each figure of a run that rests on profiles, by its name there."""
    return {name: attrgetter(name)(run) for name in _BANDED[type(run)]} | {"step_seconds": run.step_seconds[1]}


_RATES = ("array_seconds", "records_per_second", "joules_per_record")
_BASELINE = ("baseline.records_per_second", "baseline.joules_per_record")
_BANDED = {
    SimulatedRun: (*_RATES, "exchange_seconds", "speedup", "energy_factor", *_BASELINE),
    SimulatedTree: (*_RATES, "ideal_records_per_second", "efficiency", *(f"seconds.{part}" for part in PARTS)),
}


def run_request(request: SimulationRequest, tree: Tree) -> SimulationTrace:
    """Return the request's run on a tree; what fails is drawn by the job's seed."""
    job, failures = request.job, request.config.failures if request.config is not None else None
    tuner = make_tuner(job.tuner, tree, job.sync.tuning, job.batch_size, request.steps, request.plugin)
    outages = Outages(tree, failures, np.random.default_rng(job.seed))
    competition = Competition(tree, job.disturb)
    return simulate(tree, tuner, competition, request.steps, job.sync.tuning.cost_steps, outages)


def describe_array(tree: Tree, trace: SimulationTrace) -> SimulatedRun:
    """Return the figures of a simulated run of one array, beside those of its host alone on as many records."""
    (block,), records = tree.blocks, int(trace.records.sum())
    base = host_alone(block.nodes, records)
    return SimulatedRun(
        ratio=tree.ratio,
        array_seconds=float(trace.seconds.sum()),
        records=records,
        records_per_second=trace.records_per_second(),
        joules={component: trace.components[component] for component in (*COMPONENTS, CHASSIS)},
        joules_per_record=trace.joules_per_record(),
        link_bytes_per_record=float(trace.bytes[:, 0].sum()) / records,
        step_seconds=_spread(trace),
        exchange_seconds=tree.sync_seconds(trace.first),
        classes=_classes(tree, trace),
        retunes=_retunes(trace),
        baseline=base,
        speedup=trace.records_per_second() / base.records_per_second,
        energy_factor=base.joules_per_record / trace.joules_per_record(),
    )


def describe_tree(tree: Tree, trace: SimulationTrace) -> SimulatedTree:
    """Return the figures of a simulated run of several servers."""
    parts, ideal = trace.parts.sum(axis=0), ideal_records_per_second(tree, trace.first)
    everyone = np.ones(tree.count, bool)
    return SimulatedTree(
        ratio=tree.ratio,
        array_seconds=float(trace.seconds.sum()),
        records=int(trace.records.sum()),
        records_per_second=trace.records_per_second(),
        ideal_records_per_second=ideal,
        efficiency=trace.records_per_second() / ideal if ideal else 0.0,
        joules=trace.components,
        joules_per_record=trace.joules_per_record(),
        step_seconds=_spread(trace),
        seconds=TreeSeconds(*parts.tolist()),
        bytes=TreeBytes(*trace.bytes.sum(axis=0).tolist()),
        bottleneck=PARTS[int(parts.argmax())],
        next_bottleneck=PARTS[1 + int(parts[1:].argmax())],
        allreduce_seconds={name: tree.reduce(everyone, name).seconds for name in ALGORITHMS},
        losses=TreeLosses(*trace.losses),
        classes=_classes(tree, trace),
        retunes=_retunes(trace),
        steps=_steps(trace),
    )


def ideal_records_per_second(tree: Tree, batches: Batches) -> float:
    """Return the records per second of all servers if each trained alone, nobody slow and nothing lost."""
    model = TreeStepModel(tree)
    steps, _ = model.cost(batches, np.ones(len(tree.names)))
    records = np.bincount(tree.server_of, batches)
    return float((records / (steps.ready_seconds + model.optimiser_seconds)).sum())


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


def assumptions(nodes: Nodes) -> list[AssumedFigure]:
    """Return the assumed figures of all profiles, and of the host's part in a step."""
    memory = MEMORY_BYTES_PER_SECOND
    listed = list_assumptions([kind.profile for kind in nodes.kinds])
    host = nodes.host.profile.name
    return [*listed, AssumedFigure(host, "memory_bytes_per_second", memory.value, "B/s", memory.source)]


def _ratios(request: SimulationRequest) -> tuple[RatioName, ...]:
    """Return the ends of the band: the baseline of an array depends on them too, whether its host trains or not."""
    every = request.config is None or any(array.host.trains for array in request.arrays.values())
    return get_args(RatioName) if every else ("middle",)


def _spread(trace: SimulationTrace) -> list[float]:
    """Return the shortest, the median and the longest step."""
    seconds = trace.seconds
    return [float(seconds.min()), float(np.median(seconds)), float(seconds.max())]


def _retunes(trace: SimulationTrace) -> list[SimulatedRetune]:
    return [SimulatedRetune(step, retune.gain_steps, retune.reason) for step, retune in trace.retunes]


def _steps(trace: SimulationTrace) -> list[TreeStepFigures]:
    columns = trace.seconds, trace.parts, trace.records, trace.joules, trace.bytes, trace.servers, trace.drives
    return [
        TreeStepFigures(seconds, TreeSeconds(*parts), int(records), joules, TreeBytes(*crossed), servers, drives)
        for seconds, parts, records, joules, crossed, servers, drives in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def _classes(tree: Tree, trace: SimulationTrace) -> list[SimulatedClass]:
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


def _assumed(config: ServersConfig | None, tree: Tree) -> list[AssumedFigure]:
    listed = [figure for block in tree.blocks for figure in assumptions(block.nodes)]
    if config is not None and config.failures is not None:
        seconds, why = config.failures.rendezvous, "assumed: until a loss among real servers has been timed"
        listed.append(AssumedFigure(config.name, "failures.rendezvous", seconds, "s", why))
    return list({(figure.profile, figure.name): figure for figure in listed}.values())
