"""The server of the published experiments: speed, energy and traffic against drives and batches, and disturbances."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from csd_lab.reproduce.blind_server import TUNING, BlindServer, Circumstances
from csd_lab.reproduce.hypertune_result import BatchEffect, DisturbanceFigures, ModelInput, Scaling
from csd_lab.simulate.nodes import Nodes
from csd_lab.simulate.simulated_baseline import host_alone
from csd_lab.simulate.simulated_run import SimulationTrace, simulate
from csd_lab.simulate.simulation_figures import SimulatedBaseline
from csd_lab.simulate.tree import array_tree
from csd_lab.simulate.tuners import make_tuner, plan
from firmware_agent.common.models import build_model
from firmware_agent.common.shipped_code import ShippedCode
from host.config.sync_section import TuningSection
from host.core.tuning.batch_tuner import Batches, Floats, Retune
from host.policies.batching.fixed import FixedBatches
from host.policies.batching.stannis import plan_batches

MODELS = ("mobilenet_v2", "squeezenet", "inception_v3", "nasnet_mobile")


def describe_input(server: BlindServer, at: Circumstances) -> ModelInput:
    """Return what a model's figures rest on."""
    load, table = server.load, server.cycles.table
    modules = build_model(ShippedCode(server.model)).modules()
    norms = any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in modules)
    return ModelInput(
        model=server.model,
        input_shape=list(load.shape),
        measured_batches=table.batches,
        drive_records_per_second=server.at_once / float(server.drive_seconds(at)[-1]),
        peak_memory_bytes=table.peak_memory_bytes(server.at_once),
        state_bytes=load.state_bytes,
        record_bytes=load.record_bytes,
        batch_statistics=norms,
        cycles=server.cycles.basis,
    )


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
        exchange_seconds=tree.sync_seconds(batches),
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


LOST = (0.25, 0.375, 0.5, 0.625, 0.75)
# Steps before, while and after a node is disturbed.
BEFORE, DURING, AFTER = 100, 200, 100
STEPS = BEFORE + DURING + AFTER
_BEFORE, _DURING, _AFTER = slice(0, BEFORE), slice(BEFORE, BEFORE + DURING), slice(BEFORE + DURING, STEPS)


def disturb(nodes: Nodes) -> Iterator[DisturbanceFigures]:
    """Yield one row for each share lost, by the host and by the first drive; all drives compute."""
    batches = plan(array_tree(nodes), TUNING)
    for number in (len(nodes.names) - 1, 0):
        for lost in LOST:
            yield disturb_node(nodes, batches, number, lost)


def disturb_node(nodes: Nodes, batches: Batches, number: int, lost: float) -> DisturbanceFigures:
    """Return what happens if node `number` loses the share `lost` of its speed, with (nodes,) `batches` planned."""

    def slowdowns(step: int) -> Floats:
        factors = np.ones(len(batches))
        if BEFORE < step <= BEFORE + DURING:
            factors[number] = 1 / (1 - lost)
        return factors

    tree = array_tree(nodes)
    left = simulate(tree, FixedBatches(batches.tolist()), slowdowns, STEPS)
    tuner = make_tuner("hypertune", tree, TUNING, 1, STEPS)
    tuned = simulate(tree, tuner, slowdowns, STEPS, TUNING.cost_steps)
    share = float(batches[number] / batches.sum())
    before = left.records_per_second(_BEFORE)
    settled, calm = _last_part(tuned, _DURING), _last_part(tuned, _AFTER)
    return DisturbanceFigures(
        model=nodes.load.spec.name,
        node=nodes.names[number],
        lost=lost,
        share=share,
        before=before,
        during_without=left.records_per_second(_DURING),
        during_with=tuned.records_per_second(_DURING),
        retuned=tuned.records_per_second(settled),
        ceiling=(1 - lost * share) * before,
        after=tuned.records_per_second(_AFTER),
        recovered=tuned.records_per_second(calm),
        detect_steps=_delay(tuned.retunes, _DURING),
        recover_steps=_delay(tuned.retunes, _AFTER),
        before_joules=left.joules_per_record(_BEFORE),
        during_without_joules=left.joules_per_record(_DURING),
        during_with_joules=tuned.joules_per_record(_DURING),
        after_joules=tuned.joules_per_record(_AFTER),
    )


def _within(retunes: Sequence[tuple[int, Retune]], part: slice) -> list[int]:
    """Return the steps, 0 for the first, from which retunes decided in `part` are in force there."""
    return [step - 1 for step, _ in retunes if part.start < step - 1 < part.stop]


def _last_part(trace: SimulationTrace, part: slice) -> slice:
    """Return what of `part` lies behind its last retune."""
    return slice(max([part.start, *_within(trace.retunes, part)]), part.stop)


def _delay(retunes: Sequence[tuple[int, Retune]], part: slice) -> int | None:
    steps = _within(retunes, part)
    return steps[0] - part.start if steps else None
