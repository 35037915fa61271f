"""Is a model cut where it should be, does the cut change anything but time, and what does it win?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from csd_emu.engines import Engine, make_engine
from csd_emu.paths import Paths
from csd_emu.placement.decide import decide
from csd_emu.progress import Progress
from host.bench import placement_cases, placement_runs
from host.bench.comm_models import spec_of
from host.bench.comm_runs import WallRuns, wall_config, wall_request
from host.bench.harness import report
from host.bench.placement_cases import ANY_LAYER_DRIVES, COMPUTE_BOUND, WIRE_BOUND, bound_cases, list_cases
from host.lifecycle import StartedArray
from host.machines import run_on_engine
from host.outputs import BenchReport


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Look at placement on the timeline, on native agents, on encoded frames and on the wall clock.

    Figures on the timeline (see `host.bench.placement_cases`): `declined`, `chosen_when_wire_bound`, `regret_worst` and
    `decision_seconds`. Of execution (see `host.bench.placement_runs`): `gradient_error`, `wire_error_vgg16` and
    `wire_error_alexnet`, and on the wall clock `speedup_vgg_like` and `regret_measured`.
    """
    figures, samples = on_the_timeline(progress, seed)
    progress.stage("bytes of encoded frames")
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
    progress.stage("gradients of cut models")
    errors = placement_runs.gradient_errors(paths, progress, seed)
    samples["gradients"] = {case: {kind: float(one) for kind, one in each.items()} for case, each in errors.items()}
    figures["gradient_error"] = max(each["worst"] for each in samples["gradients"].values())
    _on_the_wall(paths, progress, seed, figures, samples)
    return report("placement", "wall", seed, figures, samples, "native")


def on_the_timeline(progress: Progress, seed: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figures that need nothing but arithmetic, and what they rest on."""
    progress.stage("layers of full-size models")
    generator = np.random.default_rng(seed)
    for number, model in enumerate(placement_cases.MODELS):
        placement_cases.layers_of(model)
        progress.advance((number + 1) / len(placement_cases.MODELS))
    progress.stage("cuts on the timeline")
    cases = [placement_cases.regret(case, generator) for case in list_cases()]
    few = [case for case in list_cases() if not case.overlapped and case.drives in ANY_LAYER_DRIVES]
    any_layer = [placement_cases.regret(case, generator, False) for case in few]
    progress.stage("cuts where wire or compute dominates")
    left = [(case, decide(case.situation())) for case in bound_cases(COMPUTE_BOUND)]
    wired = [placement_cases.regret(case, generator) for case in bound_cases(WIRE_BOUND)]
    progress.stage("how long a decision takes")
    seconds = placement_cases.decision_seconds()
    figures = {
        "declined": _share(decision.layer is None for _, decision in left),
        "chosen_when_wire_bound": _share(each["chosen"] == each["best"] for each in wired),
        "regret_worst": float(max(each["regret"] for each in (*cases, *any_layer))),
        "decision_seconds": max(seconds.values()),
    }
    samples = {
        "cases": cases,
        "any_layer": any_layer,
        "compute_bound": [
            {"model": case.model, "drives": case.drives, "wire_over_compute": case.ratio, "chosen": decision.layer}
            for case, decision in left
        ],
        "wire_bound": wired,
        "decision_seconds": seconds,
    }
    return figures, samples


def _on_the_wall(
    paths: Paths, progress: Progress, seed: int, figures: dict[str, float], samples: dict[str, Any]
) -> None:
    case = placement_runs.SPEEDUP_CASE
    config = wall_config(case.bytes_per_second)
    engine = placement_runs.native_engine(make_engine(config, paths))

    async def work(started: StartedArray, _: Engine) -> None:
        runs = WallRuns(started, engine, config, seed)
        figures["speedup_vgg_like"], samples["speedup"] = await placement_runs.speedup(runs, progress)
        figures["regret_measured"], samples["measured"] = await placement_runs.regret(runs, progress)

    run_on_engine(engine, wall_request(config, spec_of(case.model), 1, seed).array, paths, progress, work)


def _share(held: Iterable[bool]) -> float:
    each = list(held)
    return sum(each) / len(each)
