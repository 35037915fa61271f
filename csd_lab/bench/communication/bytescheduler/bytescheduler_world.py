"""Default and search of slice size and credit in a world that shares no code with the product's timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from csd_emu.perfmodel.overlap.layer_work import DriveTransfers
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.communication.bytescheduler import development_seeds, final_seeds
from csd_lab.bench.communication.bytescheduler.brute_force import find_best
from csd_lab.bench.communication.bytescheduler.drawn_cases import SliceCase, draw_case, draw_noise
from csd_lab.bench.communication.bytescheduler.event_world import Setting, step_seconds
from csd_lab.bench.harness import Bench, spread_over
from csd_lab.bench.intervals import lower_end
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.bayesian_search import StaticSearch
from host.policies.transfer.link_conditions import ASSUMED_SLICE_SECONDS
from host.policies.transfer.setting_grid import default_setting
from host.policies.transfer.transfer_tuner import StepSeen

# `BYTESCHEDULER_PARTITION` and `BYTESCHEDULER_CREDIT` of the released code (bytescheduler/common/bytecore.py of
# bytedance/byteps, branch bytescheduler, read 2026-11-27) are 1,000,000 and 4,000,000 parameters; here of 4 bytes.
BYTESCHEDULER_DEFAULT = Setting(4_000_000, 16_000_000)
# What every model and link had here before the default followed from them.
FIXED_DEFAULT = Setting(256 << 10, 1 << 20)
# Every layer as it becomes ready, the most urgent one first.
WHOLE_LAYERS = Setting(1 << 40, 1 << 40)
MOST_STEPS = 2000


def bench_bytescheduler_world(bench: Bench, quick: bool = False) -> BenchReport:
    """Default and search of slice and credit against the best static setting, in a world of its own.

    Models, links and costs are drawn; ranges and seeds are in the package's files. Everything is simulated. The default
    is told what an array file tells: bandwidth and latency, not what a slice costs. The search sees noisy steps; what
    it chose is judged without noise. `quick` takes the cases that both were developed on.

    Figures are ratios of rates, means over the cases: `default_over_best` and `search_over_best`, over the best static
    setting that brute force finds, each with `_low`, the lower end of the mean's 95 % interval, and `_worst`;
    `bytescheduler_over_best`, `fixed_over_best` and `whole_layers_over_best`, the same of ByteScheduler's default, of
    the fixed 256 KiB and 1 MiB, and of whole layers by priority; `default_over_bytescheduler`; `search_steps`, mean.
    """
    seeds = [bench.seed + seed for seed in (development_seeds if quick else final_seeds).SEEDS]
    bench.progress.stage(f"{len(seeds)} drawn cases, each setting by event simulation")
    with spread_over(None) as spread:
        judged = list(spread(judge, seeds))
    bench.progress.stage("")
    return bench.report("modelled", figures_of(judged, bench.seed), {"cases": judged}, engine="simulation")


def figures_of(judged: Sequence[dict[str, Any]], seed: int) -> dict[str, float]:
    """Return the figures of judged cases; `seed` is of the interval's draws."""
    figures: dict[str, float] = {}
    for name in ("default", "search", "bytescheduler", "fixed", "whole_layers"):
        ratios = np.array([each[f"{name}_over_best"] for each in judged])
        figures[f"{name}_over_best"] = float(ratios.mean())
        if name in ("default", "search"):
            figures[f"{name}_over_best_low"] = lower_end(ratios, seed)
            figures[f"{name}_over_best_worst"] = float(ratios.min())
    gains = [each["default_over_best"] / each["bytescheduler_over_best"] for each in judged]
    figures["default_over_bytescheduler"] = float(np.mean(gains))
    figures["search_steps"] = float(np.mean([each["search_steps"] for each in judged]))
    return figures


def judge(seed: int) -> dict[str, Any]:
    """Return what a case's contenders reach over its best setting, and what that is."""
    case = draw_case(seed)
    known: dict[Setting, float] = {}

    def seconds_of(setting: Setting) -> float:
        if setting not in known:
            known[setting] = step_seconds(case, setting)
        return known[setting]

    default = default_setting(case.model_bytes, told_link(case))
    found, steps = search(case, seconds_of, default)
    best, _ = find_best(case, seconds_of)
    contenders = {
        "default": as_setting(default),
        "search": found,
        "bytescheduler": BYTESCHEDULER_DEFAULT,
        "fixed": FIXED_DEFAULT,
        "whole_layers": WHOLE_LAYERS,
    }
    tried = {name: seconds_of(setting) for name, setting in contenders.items()}
    # What a contender found counts as found.
    least = min(known.values())
    return {
        "seed": seed,
        "model_bytes": case.model_bytes,
        "drives": len(case.slowdowns),
        "wire_over_compute": case.wire_seconds / case.compute_seconds,
        "slice_seconds": case.drive_slice_seconds,
        "best_seconds": least,
        "best_by_grid": [best.slice_bytes, best.credit_bytes],
        "default": [default.slice_bytes, default.credit_bytes],
        "search": [found.slice_bytes, found.credit_bytes],
        "search_steps": steps,
        **{f"{name}_over_best": least / seconds for name, seconds in tried.items()},
    }


def told_link(case: SliceCase) -> SharedLink:
    """Return what an array file says of a drive's part of the link; what a slice costs is assumed, as in a real run."""
    part = min(case.own_bytes_per_second, case.shared_bytes_per_second / len(case.slowdowns))
    return SharedLink(part, case.latency_seconds, ASSUMED_SLICE_SECONDS)


def search(case: SliceCase, seconds_of: Callable[[Setting], float], first: TransferSettings) -> tuple[Setting, int]:
    """Have the product's search go through noisy steps; return its choice, and in which step it was announced."""
    tuner, noise = StaticSearch(first), draw_noise(case, MOST_STEPS)
    step = 0
    while not tuner.finished and step < MOST_STEPS:
        step += 1
        sending = tuner.sending(step)
        tuner.observe(_seen(case, step, sending, seconds_of(as_setting(sending)) * float(noise[step - 1])))
    return as_setting(tuner.sending(MOST_STEPS + step)), step


def as_setting(sending: TransferSettings) -> Setting:
    """Return the product's settings as the world has them."""
    return Setting(sending.slice_bytes or WHOLE_LAYERS.slice_bytes, sending.credit_bytes or WHOLE_LAYERS.credit_bytes)


def _seen(case: SliceCase, step: int, sending: TransferSettings, seconds: float) -> StepSeen:
    return StepSeen(step, seconds, sending, (DriveTransfers((), np.zeros((0, 4))),) * len(case.slowdowns))
