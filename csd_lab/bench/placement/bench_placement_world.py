"""`bench placement_world`: the cut that a policy chooses against the best of all, in a world not made for it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from csd_emu.perfmodel.overlap.layer_work import TensorCost
from csd_emu.perfmodel.overlap.overlapped_step import SLICE_SECONDS
from csd_emu.perfmodel.split.split_problem import DeviceCost, HostPlace, LayerSplitCost, SplitProblem
from csd_emu.perfmodel.timeline import Link
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.communication.comm_runs import WallRuns, on_wall
from csd_lab.bench.harness import Bench
from csd_lab.bench.placement import placement_development_seeds, placement_final_seeds, placement_wall
from csd_lab.bench.placement.placement_case import Told
from csd_lab.bench.placement.placement_world import DrawnPlacement, draw_case
from firmware_agent.common.send_queue import TransferSettings
from host.config.plugins.kinds import SPLIT_POLICY

POLICIES = ("auto", "relieve_wire", "none")
CASES_PER_SEED = 12
_SENDING, _BLOCK_BYTES = TransferSettings("priority", slice_bytes=4 << 20, credit_bytes=16 << 20), 256 << 10
# Of Student's distribution with 9 degrees of freedom, for the means of ten seeds.
_STUDENT_9 = 2.262


def bench_placement_world(bench: Bench, quick: bool = False) -> BenchReport:
    """Layer placement in a held-out world: the best cut's step over that of the cut that `placement: auto` takes.

    Look at drawn models, drives, hosts and links (`csd_lab.bench.placement.placement_draws`), with every cut simulated
    by a model that shares no code with the timeline which decides. `quick`: the seeds of development alone.

    Figures: `auto_over_best`, the mean over cases of the best cut's seconds over those of the cut that `auto` takes, at
    most 1; `auto_over_best_low`, the lower end of its 95 % interval over the seeds' means; `auto_tenth`,
    `auto_worst`, the tenth percentile and the worst case; `auto_measured`, `auto_arithmetic`, `auto_overlapped`,
    `auto_exposed`: its mean over the cases whose table has layers, has none, whose exchange overlaps computing,
    does not. `relieve_wire_over_best`, `none_over_best`: the same mean of the other policies.

    On the wall clock (not with `quick`), with paced layers on native drives behind a shaped link, every cut run:
    `auto_over_best_wall`, the mean over four cases of the shortest steps, `auto_worst_wall`, and
    `auto_over_best_wall_median`, of the median steps, which other work on the machine moves.
    """
    seeds = [
        bench.seed + seed for seed in (placement_development_seeds.SEEDS if quick else placement_final_seeds.SEEDS)
    ]
    bench.progress.stage("every cut of drawn cases")
    samples = []
    for number, seed in enumerate(seeds):
        samples += [judge(draw_case(np.random.default_rng([seed, case])), seed) for case in range(CASES_PER_SEED)]
        bench.progress.advance((number + 1) / len(seeds))
    figures, ran = figures_of(samples), list[dict[str, Any]]()
    if quick:
        return bench.report("modelled", figures, {"cases": samples}, "none")

    async def work(runs: WallRuns) -> None:
        ran.extend(await placement_wall.every_cut(runs))

    on_wall(replace(bench, name="placement"), placement_wall.EVERY_CASES[0].bytes_per_second, work)
    wall = [each["auto_over_best"] for each in ran]
    medians = statistics.fmean(each["auto_over_best_median"] for each in ran)
    figures |= {"auto_over_best_wall": statistics.fmean(wall), "auto_worst_wall": min(wall)}
    figures["auto_over_best_wall_median"] = medians
    return bench.report("modelled", figures, {"cases": samples, "wall": ran}, "native")


def judge(case: DrawnPlacement, seed: int) -> dict[str, Any]:
    """Return what each policy chooses in a case, and the seconds of every cut in the world."""
    seconds = {cut: case.step_seconds(cut) for cut in case.cuts}
    best, problem = min(seconds, key=seconds.__getitem__), problem_of(case.told)
    chosen = {name: SPLIT_POLICY.load(name)().decide(problem).drive_layers for name in POLICIES}
    told = case.told
    return {
        "seed": seed,
        "drives": len(told.batches),
        "layers": len(told.layers),
        "measured": told.forward is not None,
        "overlapped": told.overlapped,
        "host_ratio": told.host_ratio,
        "step_seconds": seconds,
        "best": best,
        "chosen": chosen,
        **{f"{name}_over_best": seconds[best] / seconds[cut] for name, cut in chosen.items()},
    }


def figures_of(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of judged cases; see `bench_placement_world`."""
    auto = [each["auto_over_best"] for each in samples]
    of_seed: dict[int, list[float]] = {}
    for each in samples:
        of_seed.setdefault(each["seed"], []).append(each["auto_over_best"])
    means = [statistics.fmean(each) for each in of_seed.values()]
    half = _STUDENT_9 * statistics.stdev(means) / len(means) ** 0.5
    parts = {
        "auto_measured": [each["auto_over_best"] for each in samples if each["measured"]],
        "auto_arithmetic": [each["auto_over_best"] for each in samples if not each["measured"]],
        "auto_overlapped": [each["auto_over_best"] for each in samples if each["overlapped"]],
        "auto_exposed": [each["auto_over_best"] for each in samples if not each["overlapped"]],
    }
    return {
        "auto_over_best": statistics.fmean(auto),
        "auto_over_best_low": statistics.fmean(means) - half,
        "auto_tenth": float(np.quantile(auto, 0.1)),
        "auto_worst": min(auto),
        **{name: statistics.fmean(part) for name, part in parts.items()},
        **{
            f"{name}_over_best": statistics.fmean(each[f"{name}_over_best"] for each in samples)
            for name in POLICIES[1:]
        },
    }


def problem_of(told: Told) -> SplitProblem:
    """Return what the product makes of what is told."""
    layers = tuple(
        LayerSplitCost(
            name=layer.name,
            tensors=(TensorCost(f"{layer.name}.weight", layer.weight_bytes),),
            forward_operations=layer.operations,
            backward_operations=2 * layer.operations,
            tail_bytes=0.0,
            crossing_bytes=layer.input_bytes,
            reason="" if layer.input_bytes is not None else "the world says so",
        )
        for layer in told.layers
    )
    shares = None
    if told.forward is not None and told.backward is not None:
        shares = (tuple(told.forward.tolist()), tuple(told.backward.tolist()))
    full = max(told.batches)
    scales = [slow * batch / full for slow, batch in zip(told.slowness, told.batches, strict=True)]
    drives = tuple(
        DeviceCost(
            device=f"csd-{place:02d}",
            batch_size=batch,
            forward_seconds=told.compute_seconds / 3 * scale,
            backward_seconds=told.compute_seconds * 2 / 3 * scale,
            encode_seconds=told.encode_seconds,
            read_seconds=told.read_seconds * batch / full,
            link_bytes_per_second=told.own_rate,
            link_latency_seconds=0.0,
            layer_shares=shares,
        )
        for place, (batch, scale) in enumerate(zip(told.batches, scales, strict=True))
    )
    host_seconds = told.compute_seconds * sum(told.batches) / full / told.host_ratio
    return SplitProblem(
        layers,
        drives,
        HostPlace(host_seconds / 3, host_seconds * 2 / 3, layer_shares=shares),
        Link(told.link_rate, told.latency_seconds),
        sending=_SENDING if told.overlapped else None,
        cut_overlaps=told.overlapped,
        slice_seconds=SLICE_SECONDS.value,
        block_bytes=_BLOCK_BYTES,
    )
