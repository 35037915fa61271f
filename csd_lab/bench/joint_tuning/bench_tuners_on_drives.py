"""All tuners in one job on drives: native ones against the simulation of `together`, virtual ones against these."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from csd_emu.config.array_file import ArrayConfig
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, array_of, request_run, temporary_folder
from csd_lab.bench.joint_tuning.joint_cases import PROFILES, TUNERS
from csd_lab.bench.joint_tuning.simulated_training import simulate_training
from csd_lab.clocks.clock_runs import ClockRun, RunClock, run_on_clock
from host.config.sync_section import DisturbSection
from host.core.device_time import TRAINER_WEIGHT
from host.core.run_stats import RunStats
from host.monitoring.decision_text import Knob, describe_step
from host.training.sync.disturbances import weight_at

NATIVE_CASES, SAMPLED_CASES = 12, 6
# So many that few steps are the last one of an epoch, which is smaller.
_RECORDS = "synthetic:1x8x8:10:30000"
_STEPS, _ROUNDS = 20, 6


@dataclass(frozen=True)
class DrivesCase:
    """A job with all tuners on an array of which one drive is slowed.

    Attributes:
        name: for people.
        job: content of its job file.
        array: its drives, and link.
    """

    name: str
    job: Mapping[str, Any]
    array: ArrayConfig


class DisturbedWorld:
    """A `csd_lab.bench.joint_tuning.simulated_training.SimulatedWorld` in which drives are slowed as a job says."""

    def __init__(self, disturb: Sequence[DisturbSection]) -> None:
        """Take the section of a job."""
        self._disturb, self._step = disturb, 0

    def slowness(self, device: str, done: float, records: int) -> float:
        """Return what a model of a drive makes of the weights that compete with it."""
        return 1 + weight_at(self._disturb, device, self._step) / TRAINER_WEIGHT

    def link_share(self, done: float) -> float:
        """Return 1."""
        return 1.0

    def absent(self, done: float) -> Collection[str]:
        """Return nobody."""
        return ()

    def noise(self, step: int) -> float:
        """Return 1; the world is in this step from now on."""
        self._step = step
        return 1.0


@dataclass(frozen=True)
class DrivesResult:
    """What came of a case.

    Attributes:
        case: its name.
        rates: records per array second of the whole run, ``simulated``, and by clock ``modelled`` and ``sampled``.
        last_steps: the same keys -> what the last step was taken with.
        wall_seconds: of the commands.
    """

    case: str
    rates: Mapping[str, float]
    last_steps: Mapping[str, Mapping[Knob, str]]
    wall_seconds: Mapping[str, float]


def bench_tuners_on_drives(bench: Bench, quick: bool = False) -> BenchReport:
    """All tuners on native and virtual drives: the rates and decisions of the simulation of `together`, or others.

    Run 12 drawn jobs with all four tuners on native drives (modelled), and the first 6 of them with the clock sampled,
    too: `digits_cnn`, four to six drives of up to three profiles, one of them slowed for a while, a link of 10 MB/s to
    1 GB/s. With `quick` one job.

    Figures: `native_error_worst` and `..._median`, |rate of native drives over that of the simulated run - 1|, whole
    runs; `native_last_step_equal`, the share of devices, layers, batches and slices of the last step, each as a
    whole, that are equal; `virtual_...` the same of virtual drives over native ones.
    """
    count = 1 if quick else NATIVE_CASES
    results = []
    for number in range(count):
        case = draw_case(bench.seed, number)
        with temporary_folder() as folder:
            results.append(_run(bench, case, folder, ("native", "sampled") if number < SAMPLED_CASES else ("native",)))
        bench.progress.advance((number + 1) / count)
    figures = drives_figures(results)
    clocks = {name: "modelled" for name in figures if name.startswith("native")}
    return bench.report("sampled", figures, {"cases": [asdict(each) for each in results], "clocks": clocks})


def draw_case(seed: int, number: int) -> DrivesCase:
    """Return a case; what a drive that is slowed has left is 0.25 to 0.75 of its speed."""
    random = np.random.default_rng([34, seed, number])
    kinds = random.permutation(PROFILES)[: random.integers(1, len(PROFILES) + 1)]
    drives = [str(kind) for kind in random.choice(kinds, int(random.integers(4, 7)))]
    groups = [{"profile": profile, "name": f"d{place}"} for place, profile in enumerate(drives)]
    bandwidth = float(10 ** random.uniform(7, 9))
    array = array_of(f"together-{number}", groups, core_model="cycles", link={"bandwidth": f"{bandwidth:.0f} B/s"})
    left, begin = float(random.uniform(0.25, 0.75)), int(random.integers(35, 60))
    slowed = array.list_devices()[int(random.integers(len(drives)))].name
    weight = round(TRAINER_WEIGHT * (1 / left - 1))
    job = {
        **{"model": "digits_cnn", "data": {"source": _RECORDS}, "mode": "sync", "seed": int(random.integers(1000))},
        **{key: value for keys in TUNERS.values() for key, value in keys.items()},
        **{"rounds": _ROUNDS, "sync": {"round_steps": _STEPS}},
        "disturb": [{"device": slowed, "at_step": begin, "steps": 40, "weight": weight}],
    }
    told = f"{number}: {' + '.join(drives)}, {bandwidth / 1e6:.0f} MB/s, {slowed} at {left:.0%}"
    return DrivesCase(told, job, array)


def _run(bench: Bench, case: DrivesCase, folder: Path, clocks: Sequence[RunClock]) -> DrivesResult:
    """Run a case on each of the clocks, and return what came of it."""
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump(dict(case.job)), encoding="utf-8")
    runs = {}
    for clock in clocks:
        bench.progress.stage(f"{case.name}: {clock}")
        runs[clock] = run_on_clock(job, case.array, clock, folder, folder / "runs")
    return _compare(case, runs)


def _compare(case: DrivesCase, runs: Mapping[RunClock, ClockRun]) -> DrivesResult:
    config = case.array.model_copy(update={"engine": "native", "clock": "modelled"})
    request = request_run(config, case.job)
    simulated = simulate_training(request, DisturbedWorld(request.job.disturb))
    rates, last = {"simulated": simulated.records_per_second}, {"simulated": describe_step(simulated.steps[-1])}
    for clock, run in runs.items():
        name, rounds = "modelled" if clock == "native" else clock, run.read_rounds()
        rates[name], last[name] = RunStats.of(rounds).records_per_array_second, describe_step(rounds[-1].steps[-1])
    return DrivesResult(case.name, rates, last, {clock: run.wall_seconds for clock, run in runs.items()})


def drives_figures(results: Sequence[DrivesResult]) -> dict[str, float]:
    """Return the bench's figures; none of virtual drives if there were none."""
    figures: dict[str, float] = {}
    for name, one, other in (("native", "modelled", "simulated"), ("virtual", "sampled", "modelled")):
        both = [each for each in results if one in each.rates]
        if not both:
            continue
        errors = [abs(each.rates[one] / each.rates[other] - 1) for each in both]
        equal = [each.last_steps[one][knob] == value for each in both for knob, value in each.last_steps[other].items()]
        figures |= {
            f"{name}_error_worst": max(errors),
            f"{name}_error_median": statistics.median(errors),
            f"{name}_last_step_equal": statistics.fmean(equal),
        }
    return figures
