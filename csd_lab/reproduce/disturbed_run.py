"""The disturbance experiment: a node loses speed for a while, without and with the real HyperTune. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from csd_lab.reproduce.hypertune_result import DisturbanceFigures
from csd_lab.reproduce.published_server import TUNING
from csd_lab.simulate.nodes import Nodes
from csd_lab.simulate.simulated_run import SimulationTrace, simulate
from csd_lab.simulate.tree import array_tree
from csd_lab.simulate.tuners import make_tuner, plan
from host.core.tuning.batch_tuner import Batches, Floats, Retune
from host.policies.batching.fixed import FixedBatches

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
