"""Every combination of the four tuners in one job: what each is worth, and what it is worth beside another."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, spread_over
from csd_lab.bench.joint_tuning.joint_cases import SLOWED, TUNERS, JointScenario, ScenarioWorld, request_of
from csd_lab.bench.joint_tuning.simulated_training import simulate_training

Floats = npt.NDArray[np.float64]
_MODELS = ("late heavy layers", "many small tensors", "small images")
_BANDWIDTHS = 1e7, 1e8, 1e9
# Drives of each profile: all alike, and three kinds.
_SPREADS = (8, 0, 0), (3, 3, 2)
_LATENCY_SECONDS, _SPEED_LEFT = 1e-4, 0.5
# Which tuners are on: (16, 4).
COMBINATIONS = np.array(list(itertools.product([False, True], repeat=len(TUNERS))))


@dataclass(frozen=True)
class FactorialCase:
    """A scenario, and records per array second with each of `COMBINATIONS`, clock ``modelled``."""

    scenario: str
    rates: tuple[float, ...]


def bench_tuner_factorial(bench: Bench, quick: bool = False) -> BenchReport:
    """2^4 factorial of the four tuners: 3 models x 3 links x 2 spreads of eight drives, one of them slowed meanwhile.

    Run each job with every combination of `batches`, `transfers`, `split` and `devices`, as `bench together` runs jobs.
    With `quick` one model and one link.

    Figures: `main_...` and `both_..._...` (Box, Hunter and Hunter, Statistics for Experimenters, chapter 5), of
    logarithms of records per second, as ratios: what switching a tuner on multiplies the rate by, in the mean over all
    cases and over what the others are; and the rates with both and with neither of two over those with one of them, so
    1 if each multiplies it by as much whether the other is on or not. `worst_over_best_single`: of all cases, all four
    together over the best single tuner.
    """
    scenarios = list_scenarios(quick)
    cases = []
    with spread_over(os.cpu_count()) as spread:
        for done, case in enumerate(spread(run_combinations, scenarios), 1):
            cases.append(case)
            bench.progress.advance(done / len(scenarios))
    samples = {"cases": [asdict(case) for case in cases], "combinations": COMBINATIONS.tolist()}
    return bench.report("modelled", factorial_figures(cases), samples, "none")


def list_scenarios(quick: bool) -> list[JointScenario]:
    """Return the cases; in each a drive has half its speed for a part of the run."""
    models, bandwidths = (_MODELS[:1], _BANDWIDTHS[:1]) if quick else (_MODELS, _BANDWIDTHS)
    return [
        JointScenario(seed, model, counts, bandwidth, _LATENCY_SECONDS, True, SLOWED, 0, 0.3, 0.7, _SPEED_LEFT)
        for seed, (model, bandwidth, counts) in enumerate(itertools.product(models, bandwidths, _SPREADS))
    ]


def run_combinations(scenario: JointScenario) -> FactorialCase:
    """Return what came of a scenario."""
    planned = request_of(scenario, tuner="hypertune").sync
    assert planned is not None
    return FactorialCase(scenario.name, tuple(_rate(scenario, min(planned.batches), on) for on in COMBINATIONS))


def _rate(scenario: JointScenario, batch_size: int, on: Sequence[bool]) -> float:
    chosen: list[Mapping[str, Any]] = [keys for keys, one in zip(TUNERS.values(), on, strict=True) if one]
    keys = {key: value for each in chosen for key, value in each.items()}
    request = request_of(scenario, batch_size=batch_size, **keys)
    return simulate_training(request, ScenarioWorld(scenario)).records_per_second


def factorial_figures(cases: Sequence[FactorialCase]) -> dict[str, float]:
    """Return the bench's figures."""
    rates: Floats = np.array([case.rates for case in cases])
    logs, signs = np.log(rates).mean(axis=0), np.where(COMBINATIONS, 1.0, -1.0)
    names = list(TUNERS)
    single = COMBINATIONS.sum(axis=1) == 1
    figures = {f"main_{name}": _effect(logs, signs[:, place]) for place, name in enumerate(names)}
    for (a, one), (b, other) in itertools.combinations(enumerate(names), 2):
        figures[f"both_{one}_{other}"] = _effect(logs, signs[:, a] * signs[:, b]) ** 2
    figures["worst_over_best_single"] = float((rates[:, -1] / rates[:, single].max(axis=1)).min())
    return figures


def _effect(logs: Floats, signs: Floats) -> float:
    """Return the ratio of rates for a contrast of (combinations,) signs."""
    return float(np.exp(logs[signs > 0].mean() - logs[signs < 0].mean()))
