"""Choices of the planner against the truly best devices, in worlds that it does not know, and what they cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import repeat
from typing import Any

import numpy as np

from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, spread_over
from csd_lab.bench.intervals import half_interval
from csd_lab.bench.planner import planner_development_seeds, planner_final_seeds
from csd_lab.bench.planner.planner_cases import (
    COUNTS,
    LINKS_BYTES_PER_SECOND,
    MODELS,
    STEPS,
    TUNING,
    PlannerCase,
    Truth,
    find_truth,
    job_records,
    list_cases,
    make_cluster,
)
from csd_lab.bench.planner.planner_draws import draw
from csd_lab.bench.planner.planner_jobs import play_disturbances
from csd_lab.bench.planner.planner_play import (
    ChoiceOutcome,
    play,
    play_exhaustive,
    play_known,
    play_model,
    play_rules,
    time_planning,
)
from csd_lab.bench.planner.planner_ranges import PlannerRanges
from csd_lab.bench.planner.planner_world import World
from host.config.preference import parse_preference
from host.config.sync_section import TuningSection
from host.policies.selection.selection_rules import SelectionRules

# Steps of each trial.
TRIAL_STEPS = 5
SENSITIVE_STEPS = (1, 2, 5, 10, 20)
SENSITIVE_NOISE = (0.0, 0.01, 0.02, 0.05)
# Of Gu et al.'s method: steps of every configuration.
EXHAUSTIVE_STEPS = (1, 5)
# 36 drives, for `plan_seconds`.
WIDE_COUNTS, WIDE_RUNS = (9, 9, 9, 9), 3
PUBLISHED_HIT_RATE = 0.7667
# Regret of `within_5_percent`.
NEAR = 0.05


def bench_planner(bench: Bench, quick: bool = False) -> BenchReport:
    """Choices of the planner against the truly best devices, in worlds that it does not know, and what they cost.

    Let the planner choose in 60 worlds of each of ten seeds, judged by running every configuration to the end; and
    train whole jobs in five of them in which a drive is slowed for 12 steps in the trials, or for good later on.

    Figures (lower bounds: the rates): see `summarise`; `hard_cases`; `.._low` and `.._high`, ends of the 95 % interval
    over the seeds; `exhaustive_..`, those of 5 steps of every configuration; `disturbed_figures`, and `time_figures`.
    `--quick` takes the seeds of development in place of the final ones. Clock: modelled; the last two are wall seconds.
    """
    began = time.monotonic()
    seeds = [bench.seed + seed for seed in (planner_development_seeds if quick else planner_final_seeds).SEEDS]
    rows = [row for seed in seeds for row in play_all(bench.progress, seed, sensitive=seed == seeds[0])]
    disturbed = play_disturbed(bench.progress, seeds)
    bench.progress.stage("how long planning takes with 36 drives")
    timed = [time_wide(bench.seed + number) for number in range(WIDE_RUNS)]
    ours = [row["ours"] for row in rows]
    hard = [row["ours"] for row in rows if row["hard"]]
    figures = summarise(ours) | {
        "hit_rate_hard": _mean(each["hit"] for each in hard),
        "hard_cases": float(len(hard)),
    }
    figures |= intervals(rows) | disturbed_figures(disturbed) | time_figures(timed)
    samples = {
        "scenario": _describe() | {"disturbances": asdict(PlannerRanges())},
        "seeds": seeds,
        "disturbed": disturbed,
        "others": compare(rows),
        "sensitivity": sensitivity(rows),
        "default_tuning": summarise([row["default_tuning"] for row in rows if "default_tuning" in row]),
        "published_hit_rate": PUBLISHED_HIT_RATE,
        "cases": rows,
        "timed": timed,
        "wall_seconds": time.monotonic() - began,
    }
    return bench.report("modelled", figures, samples, "none")


def play_all(
    progress: Progress,
    seed: int,
    cases: Sequence[PlannerCase] | None = None,
    processes: int | None = None,
    sensitive: bool = True,
) -> list[dict[str, Any]]:
    """Return what happened in each case: see `play_case`; without `sensitive` the choices alone."""
    chosen = list_cases() if cases is None else cases
    progress.stage(f"{len(chosen)} worlds, every configuration in each")
    rows = []
    with spread_over(processes) as spread:
        looked = (is_sensitive(case) if sensitive else None for case in chosen)
        for row in spread(play_case, repeat(seed), chosen, looked):
            rows.append(row | {"seed": seed})
            progress.advance(len(rows) / len(chosen))
    return rows


def play_disturbed(progress: Progress, seeds: Sequence[int], processes: int | None = None) -> list[dict[str, Any]]:
    """Return what came of the disturbed jobs of each seed: see `play_disturbances`."""
    jobs = [(seed, case) for seed in seeds for case in disturbed_cases(seed)]
    progress.stage(f"{len(jobs)} jobs in which a drive is slowed")
    rows = []
    with spread_over(processes) as spread:
        for row in spread(play_disturbances, *zip(*jobs, strict=True)):
            rows.append(row)
            progress.advance(len(rows) / len(jobs))
    return rows


def disturbed_cases(seed: int) -> list[PlannerCase]:
    """Return five cases, one of each model; three seeds in a row have each model with each preference but `power`."""
    cases = [case for case in list_cases() if is_sensitive(case) and case.preference != "power"]
    return [case for number, case in enumerate(cases) if (number // 3 + number + seed) % 3 == 0]


def disturbed_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of jobs in which a drive was slowed; losses are shares of a job (`planner_jobs.loss`).

    * `blip_loss`, `blip_loss_worst`: what a job with a blip costs over the same job without; its interval over seeds.
    * `blip_loss_choice`: what the choice after a blip costs over the choice without it, both undisturbed.
    * `change_over_oracle`: the oracle's cost over that of a job in which a level changes for good; `.._kept` where the
      choice is never looked at again, `.._worst` the least.
    * `quiet_over_oracle`: the same of jobs without a disturbance, by the same oracle.
    """
    figures = spread_figures("blip_loss", rows, lambda own: _mean(row["blip_loss"] for row in own))
    figures |= {f"{name}_worst": max(row[name] for row in rows) for name in ("blip_loss",)}
    figures["blip_loss_choice"] = _mean(row["blip_loss_choice"] for row in rows)
    for name in ("quiet", "change", "change_kept"):
        figures[f"{name}_over_oracle"] = _mean(row[f"{name}_over_oracle"] for row in rows)
    figures["change_over_oracle_worst"] = min(row["change_over_oracle"] for row in rows)
    return figures


def intervals(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the ends of the 95 % intervals of the rates over seeds, and what trials of everything come to."""
    figures: dict[str, float] = {}
    for name, hard in (("hit_rate", False), ("within_5_percent", False), ("hit_rate_hard", True)):
        key = "hit_rate" if hard else name

        def rate(own: Sequence[Mapping[str, Any]], key: str = key, hard: bool = hard) -> float:
            return summarise([row["ours"] for row in own if row["hard"] or not hard])[key]

        figures |= {end: value for end, value in spread_figures(name, rows, rate).items() if end != name}
    figures |= spread_figures(
        "exhaustive_hit_rate", rows, lambda own: _mean(row["exhaustive"]["5"]["hit"] for row in own)
    )
    figures |= spread_figures("known_hit_rate", rows, lambda own: _mean(row["known"]["hit"] for row in own))
    return figures | {"exhaustive_overhead": _mean(row["exhaustive"]["5"]["overhead"] for row in rows)}


def spread_figures(
    name: str, rows: Sequence[Mapping[str, Any]], of: Callable[[Sequence[Mapping[str, Any]]], float]
) -> dict[str, float]:
    """Return the mean over seeds of a figure of the rows of each, and the ends of its 95 % interval."""
    seeds = sorted({row["seed"] for row in rows})
    values = [of([row for row in rows if row["seed"] == seed]) for seed in seeds]
    mean, half = _mean(values), half_interval(values)
    return {name: mean, f"{name}_low": mean - half, f"{name}_high": mean + half}


def is_sensitive(case: PlannerCase) -> bool:
    """Return whether a case is one of the 20 of the sensitivities: every model and preference once, links in turn."""
    preference, link = divmod(case.number % (4 * len(LINKS_BYTES_PER_SECOND)), len(LINKS_BYTES_PER_SECOND))
    return (list(MODELS).index(case.model) + preference + link) % len(LINKS_BYTES_PER_SECOND) == 0


def play_case(seed: int, case: PlannerCase, sensitive: bool | None) -> dict[str, Any]:
    """Return everyone's choices in a case, what is truly best, and whether a fixed rule would have done.

    If it is `sensitive`, other numbers of steps and other noise are tried too; with None nobody looks at what else is
    ranked.
    """
    truth = find_truth(case, seed)
    rules = play_rules(truth)
    best = truth.best
    row: dict[str, Any] = {
        "case": {"model": case.model, "preference": case.preference, "unused_powered": case.unused_powered}
        | {"link_bytes_per_second": case.link_bytes_per_second, "deadline_seconds": truth.deadline_seconds},
        "best": {"configuration": truth.configurations[best], "batches": truth.batches[best]}
        | {"seconds": float(truth.seconds[best]), "joules": float(truth.joules[best])},
        "as_good": int(np.sum(np.exp(truth.scores - truth.scores[best]) <= 1.01)),
        "hard": not any(outcome.hit for outcome in rules.values()),
        "ours": _play(seed, case, truth, TRIAL_STEPS, ranked=sensitive is not None).row(),
        "tables": play_model(truth, case).row(),
        "known": play_known(truth).row(),
        "rules": {name: outcome.row() for name, outcome in rules.items()},
        "exhaustive": {
            str(steps): play_exhaustive(truth, steps, _generator(seed, case, 3)).row() for steps in EXHAUSTIVE_STEPS
        },
    }
    if sensitive:
        row["steps"] = {
            str(steps): row["ours"] if steps == TRIAL_STEPS else _play(seed, case, truth, steps).row()
            for steps in SENSITIVE_STEPS
        }
        row["noise"] = {
            f"{noise:g}": _play(seed, case, find_truth(case, seed, noise), TRIAL_STEPS).row()
            for noise in SENSITIVE_NOISE
        }
        found = find_truth(case, seed, tuning=TuningSection())
        row["default_tuning"] = _play(seed, case, found, TRIAL_STEPS).row()
    return row


def summarise(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of some choices.

    * `hit_rate`, `within_5_percent`: share whose metric is the best's within 1 %, within 5 %, and that is in time.
    * `hit_rate_same_configuration`: share that has the best's devices, whatever its batches cost, or is a hit; in time.
    * `mean_regret`, `worst_regret`: metric of the choice over that of the best - 1, each truly run.
    * `trial_share`: mean share of the job's records that trials trained on.
    * `overhead`: mean seconds of the trials, less what the choice would have taken for their records, over the
      training's; trials that were no dearer count as 0. `overhead_worst`: the largest.
    * `time_estimate_error_median`, `energy_estimate_error_median`: |estimate / truth - 1| of the choice.
    * Where they are known, those of `summarise_ranked`.
    """
    figures = {
        "hit_rate": _mean(each["hit"] for each in outcomes),
        "within_5_percent": _mean(each["kept"] and each["regret"] <= NEAR for each in outcomes),
        "hit_rate_same_configuration": _mean(each["kept"] and (each["same"] or each["hit"]) for each in outcomes),
        "mean_regret": _mean(each["regret"] for each in outcomes),
        "worst_regret": max(each["regret"] for each in outcomes),
        "trial_share": _mean(each["trial_share"] for each in outcomes),
        "overhead": _mean(max(0.0, each["overhead"]) for each in outcomes),
        "overhead_worst": max(each["overhead"] for each in outcomes),
    }
    for name, kind in (("time", "seconds"), ("energy", "joules")):
        errors = [abs(each[f"{kind}_error"]) for each in outcomes if each[f"{kind}_error"] is not None]
        if errors:
            figures[f"{name}_estimate_error_median"] = statistics.median(errors)
    return figures | summarise_ranked(outcomes)


def summarise_ranked(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what estimates of everything that is ranked are worth; nothing where nobody looked at them.

    * `time_estimate_error_ranked`, `energy_estimate_error_ranked`: |estimate / truth - 1| of configurations that were
      not measured: median of a plan, of these the median.
    * `interval_coverage`, `interval_coverage_energy`: share of them whose true time or energy lies in its range.
    * `sure_mean`, `none_better`: the mean `sure`, and the share of the cases in which none was better by more than 1 %.
    """
    looked = [each for each in outcomes if each.get("ranked") is not None]
    if not looked:
        return {}
    figures = {
        "sure_mean": _mean(each["sure"] for each in looked),
        "none_better": _mean(each["ranked"]["none_better"] for each in looked),
    }
    plans = [each["ranked"] for each in looked if each["ranked"]["unmeasured"]]
    if plans:
        figures |= {
            "time_estimate_error_ranked": statistics.median(each["seconds_error"] for each in plans),
            "energy_estimate_error_ranked": statistics.median(each["joules_error"] for each in plans),
            "interval_coverage": _mean(each["seconds_covered"] for each in plans),
            "interval_coverage_energy": _mean(each["joules_covered"] for each in plans),
        }
    return figures


def compare(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the figures of everyone else: fixed rules, tables without trials, a few steps of every configuration."""
    others = {f"rule: {name}": [row["rules"][name] for row in rows] for name in rows[0]["rules"]}
    others["our planner before any trial"] = [row["tables"] for row in rows]
    for steps in rows[0]["exhaustive"]:
        label = f"Gu et al.: {steps} step{'s' if int(steps) > 1 else ''} of every configuration"
        others[label] = [row["exhaustive"][steps] for row in rows]
    return {name: summarise(outcomes) for name, outcomes in others.items()}


def sensitivity(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return ``steps`` and ``noise`` -> value -> the figures of the cases that were tried with it."""
    return {
        name: {
            value: summarise([row[name][value] for row in rows if name in row])
            for value in next((row[name] for row in rows if name in row), {})
        }
        for name in ("steps", "noise")
    }


def time_wide(seed: int) -> list[dict[str, float]]:
    """Return wall seconds of `next_trial` and `decide`, trial by trial, with 36 drives in four classes and the host."""
    cluster = make_cluster("resnet50", 125e6, WIDE_COUNTS)
    generator = np.random.default_rng((seed, 4))
    world = World(cluster, draw(cluster, generator))
    rules = SelectionRules(parse_preference("edp"), steps=TRIAL_STEPS, tuning=TUNING)
    return time_planning(world, rules, job_records(cluster), generator)


def time_figures(timed: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Return wall seconds, from what `time_wide` returned of each planning.

    `plan_seconds`: of one look, a `next_trial` and a `decide`, the median of all; `plan_seconds_whole`: of all looks of
    a planning together, the median of the plannings.
    """
    looks = [[sum(look.values()) for look in planning] for planning in timed]
    return {
        "plan_seconds": statistics.median(seconds for planning in looks for seconds in planning),
        "plan_seconds_whole": statistics.median(sum(planning) for planning in looks),
    }


def _play(seed: int, case: PlannerCase, truth: Truth, steps: int, ranked: bool = False) -> ChoiceOutcome:
    return play(truth, case, steps, _generator(seed, case, 2), ranked=ranked)


def _generator(seed: int, case: PlannerCase, purpose: int) -> np.random.Generator:
    return np.random.default_rng((seed, case.number, purpose))


def _describe() -> dict[str, Any]:
    return {
        "models": list(MODELS),
        "link_bytes_per_second": LINKS_BYTES_PER_SECOND,
        "drives_of_each_class": COUNTS,
        "steps": STEPS,
        "trial_steps": TRIAL_STEPS,
        "tuning": TUNING.model_dump(),
    }


def _mean(values: Iterable[float]) -> float:
    each = [float(value) for value in values]
    return statistics.fmean(each) if each else 0.0
