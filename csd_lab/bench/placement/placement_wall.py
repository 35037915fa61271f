"""Cuts on the wall clock, for `bench placement`: paced native drives behind a shaped link, and the predictions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch

from csd_emu.perfmodel.split.split_problem import DeviceCost, HostPlace, LayerSplitCost, SplitProblem
from csd_emu.perfmodel.timeline import Link
from csd_lab.bench.communication.comm_cases import DRIVES, LATENCY_SECONDS, CommunicationCase, costs_of, spec_of
from csd_lab.bench.communication.comm_nets import INPUT_SHAPE, NETS
from csd_lab.bench.communication.comm_runs import WallRuns
from csd_lab.bench.harness import Attempt, undisturbed
from firmware_agent.common.layer_costs import trace_layers
from firmware_agent.common.split.cutting import list_cuts
from host.policies.split.choose_cut import HEAVY, decide
from host.policies.split.cut_decision import CutDecision
from host.training.split.split_model import NONE

BATCH = 32
# What a drive computes for in a step of the whole model.
COMPUTE_SECONDS = 0.2
_SPEEDUP_STEPS = 8
_REGRET_STEPS, _EVERY_STEPS = 5, 4
# Placements that each case of `regret` runs with.
_PLACEMENTS = 3
# Only the shared side of the link is shaped.
_OWN_BYTES_PER_SECOND = 1e12


class PlacementWallCase(CommunicationCase):
    """A scaled model on three paced drives that share a link; the ratio is that with nothing moved."""

    compute_seconds = COMPUTE_SECONDS


# Step seconds of each case and placement.
Made = Mapping[tuple[PlacementWallCase, str], Attempt[list[float]]]
SPEEDUP_CASE = PlacementWallCase("vgg", 4.0)
# Four cases with three placements each: twelve runs.
REGRET_CASES = (
    PlacementWallCase("vgg", 4.0),
    PlacementWallCase("alexnet", 1.0),
    PlacementWallCase("resnet", 1.0),
    PlacementWallCase("transformer", 4.0),
)
# Cases of which every cut is run; none of them is one of `REGRET_CASES`.
EVERY_CASES = (
    PlacementWallCase("vgg", 1.0),
    PlacementWallCase("alexnet", 4.0),
    PlacementWallCase("resnet", 4.0),
    PlacementWallCase("transformer", 1.0),
)


async def speedup(runs: WallRuns) -> tuple[float, dict[str, Any]]:
    """Return how many times as long a step of the scaled VGG takes with nothing moved as with the cut that is chosen.

    Medians of wall seconds, three paced drives behind the relay, 32 records each, nothing overlapping in either. The
    host's layers take their paced seconds too, once for all drives. The cut before the linear layers is run as well,
    for it is the published one.
    """
    case, chosen = SPEEDUP_CASE, placement_of(decide(situation_of(SPEEDUP_CASE), heavy=HEAVY))
    placements = dict.fromkeys((NONE, chosen, first_linear(case.model)))
    made = await _run(runs, [(case, each) for each in placements], _SPEEDUP_STEPS)
    unmoved, moved = (statistics.median(made[case, each].result) for each in (NONE, chosen))
    seconds = {placement: each.result for (_, placement), each in made.items()}
    return unmoved / moved, {"case": str(case), "chosen": chosen, "step_seconds": seconds, **_told(made)}


async def regret(runs: WallRuns) -> tuple[float, list[dict[str, Any]]]:
    """Return the largest measured chosen / best - 1, and what was seen of each case.

    Chosen is what `host.policies.split.choose_cut` says of the figures that drives and host are paced to, any layer
    allowed to move; best is the shortest median of the runs of `candidates`.
    """
    planned = [(case, placement) for case in REGRET_CASES for placement in candidates(case)]
    made = await _run(runs, planned, _REGRET_STEPS)
    cases = [_regret_of(case, {key: each for key, each in made.items() if key[0] == case}) for case in REGRET_CASES]
    return max(case["regret"] for case in cases), cases


def _regret_of(case: PlacementWallCase, made: Made) -> dict[str, Any]:
    seconds, foretold = {key[1]: statistics.median(each.result) for key, each in made.items()}, _foretold(case)
    chosen = next(iter(seconds))
    return {
        "case": str(case),
        "chosen": chosen,
        "step_seconds": seconds,
        "foretold_seconds": {placement: foretold[placement] for placement in seconds},
        "regret": seconds[chosen] / min(seconds.values()) - 1,
        **_told(made),
    }


async def every_cut(runs: WallRuns, cases: Sequence[PlacementWallCase] = EVERY_CASES) -> list[dict[str, Any]]:
    """Return of each case the wall seconds of steps with each cut that can be, and what `auto` chooses.

    Layers are paced, so that whatever else runs on the machine can only make a step longer: `auto_over_best` is of the
    shortest step of each cut, `auto_over_best_median` of the medians.
    """
    planned = [(case, placement) for case in cases for placement in _foretold(case)]
    made = await _run(runs, planned, _EVERY_STEPS)
    samples = []
    for case in cases:
        steps = {key[1]: each.result for key, each in made.items() if key[0] == case}
        shortest = {placement: min(each) for placement, each in steps.items()}
        medians = {placement: statistics.median(each) for placement, each in steps.items()}
        chosen = placement_of(decide(situation_of(case)))
        samples.append(
            {
                "case": str(case),
                "chosen": chosen,
                "step_seconds": steps,
                "foretold_seconds": _foretold(case),
                "auto_over_best": min(shortest.values()) / shortest[chosen],
                "auto_over_best_median": min(medians.values()) / medians[chosen],
                **_told({key: each for key, each in made.items() if key[0] == case}),
            }
        )
    return samples


async def _run(runs: WallRuns, planned: Sequence[tuple[PlacementWallCase, str]], steps: int) -> Made:
    """Return the step seconds of each case and placement; runs from which much was stolen are made again."""

    async def make(case: PlacementWallCase, placement: str) -> list[float]:
        runs.progress.stage(f"{case}: placement {placement}")
        spec = spec_of(case.model, COMPUTE_SECONDS)
        return await runs.run_placed(spec, placement, BATCH, steps, case.bytes_per_second)

    made = await undisturbed([partial(make, *each) for each in planned], runs.progress.advance)
    return dict(zip(planned, made, strict=True))


def _told(made: Made) -> dict[str, Any]:
    """Return how much of the processor time was stolen from each placement's run, and how many were made."""
    return {
        "stolen_share": {placement: each.stolen_share for (_, placement), each in made.items()},
        "runs": {placement: each.runs for (_, placement), each in made.items()},
    }


def candidates(case: PlacementWallCase) -> list[str]:
    """Return what a case runs with: what is chosen, nothing moved, and those that are foretold to be the next best.

    So what is chosen is held against its closest rivals, and not against cuts that nobody would make.
    """
    chosen, foretold = placement_of(decide(situation_of(case))), _foretold(case)
    return list(dict.fromkeys([chosen, NONE, *sorted(foretold, key=foretold.__getitem__)]))[:_PLACEMENTS]


def _foretold(case: PlacementWallCase) -> dict[str, float]:
    """Return placement -> the step that the timeline foretells, of all that can be."""
    rows = decide(situation_of(case)).rows
    return {row.layer or NONE: row.step_seconds for row in rows if row.step_seconds is not None}


def situation_of(case: PlacementWallCase) -> SplitProblem:
    """Return what the drives and the host of a case are paced to, for a decision about where its model is cut.

    The host is paced as any drive, and computes all three drives' records at once: it is as fast as all of them.
    """
    layers = _layers(case.model)
    costs = {layer.name: layer for layer in costs_of(case.model, COMPUTE_SECONDS)}
    shares = (
        tuple(costs[layer.name].forward_seconds for layer in layers),
        tuple(costs[layer.name].backward_seconds for layer in layers),
    )
    forward, backward = map(sum, shares)
    drives = tuple(
        DeviceCost(
            *(f"csd-{number:02}", BATCH, forward, backward, 0.0, 0.0, _OWN_BYTES_PER_SECOND, 0.0),
            layer_shares=shares,
        )
        for number in range(DRIVES)
    )
    host = HostPlace(forward, backward, layer_shares=shares)
    return SplitProblem(layers, drives, host, Link(case.bytes_per_second, LATENCY_SECONDS))


@cache
def _layers(model: str) -> tuple[LayerSplitCost, ...]:
    net, images = NETS[model](), torch.rand(1, *INPUT_SHAPE)
    costs = {layer.name: layer for layer in costs_of(model, COMPUTE_SECONDS)}
    points = {point.layer: point for point in list_cuts(net.model, images)}
    names = [work.name for work in trace_layers(net.model, images)]
    return tuple(
        LayerSplitCost(
            name=name,
            tensors=costs[name].tensors,
            forward_operations=net.operations[name],
            backward_operations=2 * net.operations[name],
            tail_bytes=0.0,
            crossing_bytes=None if place == 0 or points[name].reason else points[name].record_bytes,
            reason="" if place == 0 else points[name].reason,
        )
        for place, name in enumerate(names)
    )


def placement_of(decision: CutDecision) -> str:
    """Return the placement that a job asks for to get what was decided, a layer or ``none``."""
    return NONE if decision.layer is None else decision.layer


def first_linear(model: str) -> str:
    """Return the first linear layer behind the last convolution; of a model without one the last layer."""
    names = [layer.name for layer in _layers(model)]
    return next((name for name in names if name.startswith("fc")), names[-1])
