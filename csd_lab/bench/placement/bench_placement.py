"""Cuts of models: whether they are where they should be, change nothing but time, and what they win."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np

from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.communication.comm_runs import WallRuns, on_wall
from csd_lab.bench.harness import Bench
from csd_lab.bench.placement import placement_cases, placement_runs, placement_wall
from csd_lab.bench.placement.placement_cases import (
    ANY_LAYER_DRIVES,
    COMPUTE_BOUND,
    THRESHOLDS,
    WIRE_BOUND,
    PlacementCase,
    bound_cases,
    list_cases,
)
from csd_lab.bench.training.bench_gradients import measure_errors
from host.policies.split.choose_cut import decide


def run(bench: Bench) -> BenchReport:
    """Look at placement on the timeline, on native agents, on encoded frames and on the wall clock.

    Figures on the timeline (see `on_the_timeline`): `declined`, `chosen_when_wire_bound`, `regret_worst` and
    `decision_seconds`. Of execution (see `csd_lab.bench.placement.placement_runs`): `gradient_error`,
    `wire_error_vgg16` and `wire_error_alexnet`; on the wall clock (see `csd_lab.bench.placement.placement_wall`)
    `speedup_vgg_like` and `regret_measured`.
    """
    figures, samples = on_the_timeline(bench.progress, bench.seed)
    bench.progress.stage("bytes of encoded frames")
    for model, (batch, published) in placement_runs.PUBLISHED.items():
        count = placement_runs.count_wire(model, batch)
        figures[f"wire_error_{model}"] = count.error
        samples[f"wire_{model}"] = {
            "batch": batch,
            "counted_whole_bytes": count.whole_bytes,
            "counted_cut_bytes": count.cut_bytes,
            "formula_whole_bytes": count.formula_whole_bytes,
            "formula_cut_bytes": count.formula_cut_bytes,
            "counted_ratio": count.ratio,
            "derived_ratio": published,
        }
    bench.progress.stage("gradients of cut models")
    errors = measure_errors(bench, list(placement_runs.gradient_cases()))
    samples["gradients"] = {case: {kind: each[kind] for kind in ("worst", "median")} for case, each in errors.items()}
    figures["gradient_error"] = max(each["worst"] for each in errors.values())

    async def work(runs: WallRuns) -> None:
        figures["speedup_vgg_like"], samples["speedup"] = await placement_wall.speedup(runs, bench.progress)
        figures["regret_measured"], samples["measured"] = await placement_wall.regret(runs, bench.progress)

    on_wall(bench, placement_wall.SPEEDUP_CASE.bytes_per_second, work)
    return bench.report("wall", figures, samples, "native")


def on_the_timeline(progress: Progress, seed: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figures that need nothing but arithmetic, and what they rest on.

    * `regret_worst`: the largest chosen / best - 1, best of the cuts that may be chosen, as its judge has them.
    * `declined`: share of the cases in which computing takes five times as long as the wire and the exchange overlaps
      it, and nothing moves. `declined_without_overlap`: the same where all of the wire is exposed.
    * `chosen_when_wire_bound`: share of the cases in which the wire takes five times as long as computing, with and
      without overlap, and the choice is the very best of the cuts that may be chosen, as its judge has them.
      `chosen_of_all_when_wire_bound`: the same of all cuts, where any layer may move; without overlap alone.
    * `rule_costs_median`, `rule_costs_worst`: chosen / best of all cuts - 1, as predicted, without overlap: what it
      costs that only late, heavy layers move unasked, and for the wire's sake alone.
    * `decision_seconds`: of a decision over 200 layers, with overlap or without, of equal drives or unequal ones,
      whichever takes longest.
    """
    _look_up_layers(progress)
    generator = np.random.default_rng(seed)
    progress.stage("cuts on the timeline")
    cases = [placement_cases.regret(case, generator) for case in list_cases()]
    exposed = [case for case in list_cases() if not case.overlapped]
    few = [case for case in exposed if case.drives in ANY_LAYER_DRIVES]
    any_layer = [placement_cases.regret(case, generator, False) for case in few]
    costs = [placement_cases.rule_costs(case) for case in exposed]
    progress.stage("cuts where wire or compute dominates")
    left = [(case, decide(case.situation()).layer) for case in bound_cases(COMPUTE_BOUND)]
    wired = [placement_cases.regret(case, generator) for case in bound_cases(WIRE_BOUND)]
    wired_any = [placement_cases.regret(case, generator, False) for case in bound_cases(WIRE_BOUND, exposed=True)]
    progress.stage("how long a decision takes")
    seconds = placement_cases.decision_seconds()
    figures = {
        "declined": _share(layer is None for case, layer in left if case.overlapped),
        "declined_without_overlap": _share(layer is None for case, layer in left if not case.overlapped),
        "chosen_when_wire_bound": _share(each["chosen"] == each["best"] for each in wired),
        "chosen_of_all_when_wire_bound": _share(each["chosen"] == each["best"] for each in wired_any),
        "regret_worst": float(max(each["regret"] for each in (*cases, *any_layer, *wired, *wired_any))),
        "rule_costs_median": statistics.median(each["costs"] for each in costs),
        "rule_costs_worst": max(each["costs"] for each in costs),
        "decision_seconds": max(seconds.values()),
    }
    samples = {
        "cases": cases,
        "any_layer": any_layer,
        "rule_costs": costs,
        "thresholds": [placement_cases.with_threshold(heavy) for heavy in THRESHOLDS],
        "compute_bound": [_left_alone(case, layer) for case, layer in left],
        "wire_bound": wired,
        "wire_bound_any_layer": wired_any,
        "decision_seconds": seconds,
    }
    return figures, samples


def _look_up_layers(progress: Progress) -> None:
    """Have the layers of all models at hand."""
    progress.stage("layers of full-size models")
    for number, model in enumerate(placement_cases.MODELS):
        placement_cases.layers_of(model)
        progress.advance((number + 1) / len(placement_cases.MODELS))


def _left_alone(case: PlacementCase, layer: str | None) -> dict[str, Any]:
    """Return the sample of a case in which computing takes longest, and the layer chosen in it."""
    return {
        "model": case.model,
        "drives": case.drives,
        "wire_over_compute": case.ratio,
        "overlapped": case.overlapped,
        "chosen": layer,
    }


def _share(held: Iterable[bool]) -> float:
    each = list(held)
    return sum(each) / len(each)
