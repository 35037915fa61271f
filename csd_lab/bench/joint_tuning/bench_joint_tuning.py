"""All tuners in one job against each alone, against none, and against the best there is, in simulated runs."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, spread_over
from csd_lab.bench.joint_tuning.joint_cases import (
    STEPS,
    TUNERS,
    JointScenario,
    ScenarioWorld,
    draw_scenario,
    request_of,
)
from csd_lab.bench.joint_tuning.joint_development_seeds import DEVELOPMENT_SEEDS
from csd_lab.bench.joint_tuning.joint_final_seeds import FINAL_SEEDS
from csd_lab.bench.joint_tuning.joint_oracle import ScenarioOracle
from csd_lab.bench.joint_tuning.simulated_training import SimulatedTraining, simulate_training

NAIVE, TOGETHER = "naive", "together"
_QUICK = 6


@dataclass(frozen=True)
class ScenarioResult:
    """What came of a scenario; rates are records per array second over a whole run, clock ``modelled``.

    Attributes:
        scenario: its name.
        rates: of each job.
        joules: per record, of each job.
        energy: joules per record of the job in which all tuners are asked for the least.
        best: rate of the best fixed choice before and after what happens.
        changes: how often all tuners together changed batches, and transfers.
        decision_share: processor time of this machine in which they decided, over the run's modelled seconds.
    """

    scenario: str
    rates: Mapping[str, float]
    joules: Mapping[str, float]
    energy: float
    best: float
    changes: tuple[int, int]
    decision_share: float

    @property
    def alone(self) -> float:
        """Rate of the best single tuner."""
        return max(rate for name, rate in self.rates.items() if name not in (NAIVE, TOGETHER))

    @property
    def share_of_oracle(self) -> float:
        """Gain of all together over none, logarithms, over the oracle's."""
        whole = math.log(max(self.best, self.rates[TOGETHER]) / self.rates[NAIVE])
        return math.log(self.rates[TOGETHER] / self.rates[NAIVE]) / whole if whole > 0 else 1.0


def bench_together(bench: Bench, quick: bool = False) -> BenchReport:
    """Gain of batches, transfers, split and devices tuned in one job, in 200 drawn scenarios.

    Run each scenario's job without tuners, with each alone, and with all, and have an oracle choose the best.

    Each scenario is an array of 4 to 24 drives of up to three profiles, a link, a model, and something that happens: a
    drive is slowed, the link is cut to a tenth, a drive is lost, or one joins late. Jobs run without drives: the
    product's own loop and tuners take all decisions, steps are composed by the array's own model of time, and nothing
    is computed (`csd_lab.bench.joint_tuning.simulated_training`). A job without tuners has the batch that STANNIS plans
    for the slowest drive on all of them, whole tensors first-in first-out, no split and all drives. With `quick` six
    of the development seeds.

    Figures: `together_over_best_alone` and `together_over_naive`, geometric means of records per second;
    `worst_over_best_alone`; `share_of_oracle`, of the logarithm of the gain over none, in the mean; `energy`, joules
    per record with ``prefer: energy`` over the best single tuner's, geometric mean; `decision_share_median` and
    `..._worst`, processor time of deciding over modelled seconds of the run.
    """
    seeds = DEVELOPMENT_SEEDS[:_QUICK] if quick else FINAL_SEEDS
    results = []
    with spread_over(os.cpu_count()) as spread:
        for done, result in enumerate(spread(run_scenario, seeds), 1):
            results.append(result)
            bench.progress.advance(done / len(seeds))
    samples = {"scenarios": [asdict(each) for each in results], "seeds": [seeds[0], seeds[-1]], "steps": STEPS}
    return bench.report("modelled", together_figures(results), samples, "none")


def run_scenario(seed: int) -> ScenarioResult:
    """Return what came of the scenario of a seed."""
    scenario = draw_scenario(seed)
    planned = request_of(scenario, tuner="hypertune").sync
    assert planned is not None
    batch = min(planned.batches)
    every = {key: value for keys in TUNERS.values() for key, value in keys.items()}
    jobs = {NAIVE: {}, **TUNERS, TOGETHER: every}
    runs = {name: _run(scenario, {"batch_size": batch, **keys}) for name, keys in jobs.items()}
    least = {"planner": {"prefer": "energy"}, "sync": {"round_steps": STEPS, "tuning": {"objective": "energy"}}}
    energy = _run(scenario, {"batch_size": batch, **every, **least})
    together = runs[TOGETHER]
    return ScenarioResult(
        scenario.name,
        {name: run.records_per_second for name, run in runs.items()},
        {name: run.joules_per_record for name, run in runs.items()},
        energy.joules_per_record,
        ScenarioOracle(scenario, batch).records_per_second(),
        (len(together.retunes), len(together.transfer_changes)),
        together.decision_seconds / together.seconds,
    )


def together_figures(results: Sequence[ScenarioResult]) -> dict[str, float]:
    """Return the bench's figures."""
    over_alone = [each.rates[TOGETHER] / each.alone for each in results]
    over_naive = [each.rates[TOGETHER] / each.rates[NAIVE] for each in results]
    least = [min(each.joules[name] for name in TUNERS) for each in results]
    return {
        "together_over_best_alone": statistics.geometric_mean(over_alone),
        "worst_over_best_alone": min(over_alone),
        "together_over_naive": statistics.geometric_mean(over_naive),
        "share_of_oracle": statistics.fmean(each.share_of_oracle for each in results),
        "energy": statistics.geometric_mean(
            [each.energy / joules for each, joules in zip(results, least, strict=True)]
        ),
        "decision_share_median": statistics.median(each.decision_share for each in results),
        "decision_share_worst": max(each.decision_share for each in results),
    }


def _run(scenario: JointScenario, keys: Mapping[str, Any]) -> SimulatedTraining:
    return simulate_training(request_of(scenario, **keys), ScenarioWorld(scenario))
