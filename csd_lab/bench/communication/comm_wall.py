"""Agreement of the wall clock with the scheduling core: paced drives behind a shaped link, schedules in turn.

Real drives and a real link are fitted to the model from runs that are none of the cases. Three figures, each from the
runs in which it shows:

* what a step costs beside its layers, where computing is what takes the time;
* what share of the link's bytes is a model's, from FIFO's steps where the wire takes twice as long as computing: its
  slices are whole tensors, so what a slice costs hardly matters;
* what a slice costs, from priority's steps there; models disagree about it, see docs/benchmarks.md.

All four models decide, by absolute errors of the logs: one that the core is wrong about decides less then than with
squares.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from csd_emu.perfmodel.overlap.layer_work import LayerCost
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.communication import comm_cases, comm_tuners
from csd_lab.bench.communication.comm_cases import (
    CASES,
    FIFO,
    MODELS,
    PRIORITY,
    SLICE_SECONDS,
    CommunicationCase,
    spec_of,
)
from csd_lab.bench.communication.comm_runs import (
    SHAPED_LATENCY_SECONDS,
    Blocks,
    WallRuns,
    on_wall,
    ratio_interval,
)
from csd_lab.bench.harness import Attempt, Bench, Spread, spread_over, undisturbed
from csd_lab.simulate.turn_simulation import TurnSimulation, step_seconds
from firmware_agent.common.send_queue import TransferSettings

Floats = npt.NDArray[np.float64]

WIRE_BOUND = tuple(CommunicationCase(model, 2.0) for model in MODELS)
COMPUTE_BOUND = (CommunicationCase("alexnet", 0.2), CommunicationCase("resnet", 0.2))
# What is believed: of shares, of a step's own seconds, and of a slice's, which are tried one by one.
_SHARES, _STEP_SECONDS = (0.8, 1.0), (0.0, 0.1)
SLICE_CANDIDATES: Floats = np.array([5e-5 * 2.0**octaves for octaves in range(6)])
# By how much a pass ends too late while slices cross, a mean: what handles slices has the interpreter meanwhile. Traces
# of slices on two cores show 0.6 to 2.5 ms, 1.2 in the middle; rounded, and not fitted to the seconds of any step. By
# FIFO they show half of that, which lengthens no step by more than 0.2 %, and is left out.
LATE_SECONDS = 0.001
# Which slice of which drive goes first hangs on the least delay, so steps differ, on real drives by 1 to 3 % (standard
# deviation), here by 0.5 to 2.5 %. What is foretold is the mean of so many, without the first ones: known within 0.3 %
# (standard error), where the intervals that it is held against reach 1 to 2 %.
STEPS, SETTLING_STEPS = 100, 3
_DRAWN = 7

# A run and its settings.
Run = tuple[CommunicationCase, TransferSettings]


@dataclass(frozen=True)
class Fit:
    """What of real drives and a real link differs from what is modelled.

    Attributes:
        payload_share: of the shaped bytes that are a model's: the rest is TLS', HTTP/2's and the frames', and what the
            relay loses.
        step_seconds: what a step costs a drive beside its layers: taking records, looking after gradients, reporting.
        slice_seconds: what a slice costs beside its bytes.
    """

    payload_share: float
    step_seconds: float
    slice_seconds: float = SLICE_SECONDS

    def predict(self, case: CommunicationCase, sending: TransferSettings) -> float:
        """Return what the core says that a step takes."""
        return fmean(self.play(case, sending))

    def play(self, case: CommunicationCase, sending: TransferSettings) -> list[float]:
        """Return what it says that each of some steps takes; of whole tensors they are all the same.

        Real drives are never in lock-step, and simulated ones that are alike are. So each pass of each drive ends late
        by seconds of its own, drawn anew in each step from an exponential distribution.
        """
        link = replace(
            case.link,
            bytes_per_second=self.payload_share * case.bytes_per_second,
            latency_seconds=SHAPED_LATENCY_SECONDS,
            slice_seconds=self.slice_seconds,
        )
        own = LayerCost("step", (), self.step_seconds, 0.0)
        costs = [(own, *each) for each in case.costs]
        if sending.slice_bytes is None:
            return [step_seconds(costs, link, sending)]
        late = partial(np.random.default_rng(_DRAWN).exponential, LATE_SECONDS)
        run = TurnSimulation(costs, link, sending, late=late)
        return [run.step() for _ in range(SETTLING_STEPS + STEPS)][SETTLING_STEPS:]


def fit_to(measured: Mapping[Run, float], spread: Spread = map) -> Fit:
    """Return the figures with which the core says best what was measured.

    A share below 0.8 or above 1, a step's own seconds above 100 ms, and slices that cost less than 50 us or more than
    1.6 ms are not believed.

    Args:
        measured: step seconds of FIFO and priority in `WIRE_BOUND`, of FIFO in `COMPUTE_BOUND`.
        spread: maps simulations over processes.
    """
    fit = _fit_fifo(Fit(0.99, 0.01), measured, spread)
    return _fit_fifo(_fit_slices(fit, measured, spread), measured, spread)


def errors(fit: Fit, measured: Mapping[Run, float]) -> dict[str, float]:
    """Return for each run how much longer it was than the core says, as a share of what it says."""
    return {
        f"{case}, {sending.schedule}": seconds / fit.predict(case, sending) - 1
        for (case, sending), seconds in measured.items()
    }


def _fit_fifo(fit: Fit, measured: Mapping[Run, float], spread: Spread) -> Fit:
    """Return the fit with the share and the step's seconds that FIFO's runs show."""
    runs = {case: seconds for (case, sending), seconds in measured.items() if sending == FIFO}

    def off(figures: Floats) -> Floats:
        tried = replace(fit, payload_share=float(figures[0]), step_seconds=float(figures[1]))
        said: Floats = np.array(list(spread(tried.predict, runs, [FIFO] * len(runs))))
        logs: Floats = np.log(np.array(list(runs.values())) / said)
        return logs

    low, high = zip(_SHARES, _STEP_SECONDS, strict=True)
    start = (min(fit.payload_share, 0.999 * high[0]), fit.step_seconds)
    # Errors above 0.2 % count as they are, not squared.
    rules = {"loss": "soft_l1", "f_scale": 0.002, "x_scale": (0.01, 0.01), "diff_step": 0.02, "max_nfev": 12}
    found = least_squares(off, start, bounds=(low, high), **rules).x
    return replace(fit, payload_share=float(found[0]), step_seconds=float(found[1]))


def _fit_slices(fit: Fit, measured: Mapping[Run, float], spread: Spread) -> Fit:
    """Return the fit with the cost of a slice that priority's runs show, between those that are tried."""
    runs = [(case, seconds) for (case, sending), seconds in measured.items() if sending == PRIORITY]
    tried = [replace(fit, slice_seconds=float(each)) for each in SLICE_CANDIDATES]
    pairs = [(each, case, PRIORITY) for each, (case, _) in product(tried, runs)]
    said = list(spread(Fit.predict, *zip(*pairs, strict=True)))
    logs = np.log(np.array(said)).reshape(len(tried), len(runs))
    fine = np.geomspace(SLICE_CANDIDATES[0], SLICE_CANDIDATES[-1], 201)
    between = [np.interp(np.log(fine), np.log(SLICE_CANDIDATES), each) for each in logs.T]
    off = sum(np.abs(each - np.log(seconds)) for each, (_, seconds) in zip(between, runs, strict=True))
    return replace(fit, slice_seconds=float(fine[int(np.argmin(off))]))


IDENTICAL_STEPS = 50
# Fast enough that a step is short, slow enough that slices wait and overtake.
_IDENTICAL_BYTES_PER_SECOND = 100e6
# Steps of a block and blocks of each schedule, by wire/compute.
_TURNS = {0.25: (4, 3), 1.0: (5, 4), 4.0: (6, 3)}
# The same of a run that the link is measured on.
_MEASURED_TURNS = (6, 2)


# Step seconds by settings, in blocks, of the run of a case from which the least processor time was stolen.
WallBlocks = Attempt[dict[TransferSettings, list[list[float]]]]


async def identical_weights(runs: WallRuns) -> bool:
    """Return whether weights after 50 steps are the same, bit for bit, by priority as by FIFO, of all models."""
    same = True
    for model in MODELS:
        runs.progress.stage(f"{model}: {IDENTICAL_STEPS} steps by FIFO and by priority, weights compared")
        results = [
            await runs.run(spec_of(model), Blocks((sending,), IDENTICAL_STEPS, 1), _IDENTICAL_BYTES_PER_SECOND)
            for sending in (FIFO, PRIORITY)
        ]
        one, other = ({name: array.tobytes() for name, array in ran.weights.items()} for ran in results)
        same &= one == other
    return same


def plan() -> list[tuple[CommunicationCase, Blocks]]:
    """Return the runs in their order: the cases, and at a quarter and at three quarters of them half of the others.

    So a machine that gets slower or faster by and by is in the middle what it is for the others.
    """
    cases = [(case, Blocks((FIFO, PRIORITY), *_TURNS[case.ratio])) for case in CASES]
    others = [(case, Blocks((FIFO, PRIORITY), *_MEASURED_TURNS)) for case in WIRE_BOUND]
    others += [(case, Blocks((FIFO,), *_MEASURED_TURNS)) for case in COMPUTE_BOUND]
    quarter = len(cases) // 4
    return [*cases[:quarter], *others[::2], *cases[quarter : 3 * quarter], *others[1::2], *cases[3 * quarter :]]


async def measure(runs: WallRuns) -> dict[CommunicationCase, WallBlocks]:
    """Make all runs of the plan, those again from which much processor time was stolen (see `undisturbed`)."""
    planned = plan()

    async def make(case: CommunicationCase, turns: Blocks) -> dict[TransferSettings, list[list[float]]]:
        runs.progress.stage(f"{case}: {' and '.join(each.schedule for each in turns.settings)} by turns")
        ran = await runs.run(spec_of(case.model, case.compute_seconds), turns, case.bytes_per_second)
        return dict(zip(turns.settings, turns.sort(ran.step_seconds), strict=True))

    made = await undisturbed([partial(make, *each) for each in planned], runs.progress.advance)
    return dict(zip((case for case, _ in planned), made, strict=True))


def compare(
    seen: Mapping[CommunicationCase, WallBlocks], processes: int | None = None
) -> tuple[dict[str, float], dict[str, Any], list[dict[str, Any]]]:
    """Return `wall_agrees` and `model_error_median`, what was fitted, and what was seen of each case.

    `wall_agrees` is the share of the cases where the interval of FIFO's seconds over those of priority holds the ratio
    that the core predicts. `model_error_median` is the median of |predicted - measured| / measured, over all cases and
    both schedules.

    Args:
        seen: all runs of the plan.
        processes: that share the simulations; None for one per processor.
    """
    others = [case for case in seen if case not in CASES]
    measured = {(case, sending): _median(seen[case], sending) for case in others for sending in seen[case].result}
    of_cases = [case for case in seen if case in CASES]
    pairs = [(case, sending) for case in of_cases for sending in seen[case].result]
    with spread_over(processes) as spread:
        fit = fit_to(measured, spread)
        played = dict(zip(pairs, spread(fit.play, *zip(*pairs, strict=True)), strict=True))
    cases = [
        _told(case, seen[case]) | _judge(seen[case], {sending: played[case, sending] for sending in seen[case].result})
        for case in of_cases
    ]
    found = {
        "wall_agrees": sum(bool(case["agrees"]) for case in cases) / len(cases),
        "model_error_median": statistics.median(error for case in cases for error in case["errors"]),
    }
    fitted = {
        "fit": asdict(fit),
        "errors": errors(fit, measured),
        "seconds": [_told(case, seen[case]) for case in others],
    }
    return found, fitted, cases


def _median(seen: WallBlocks, sending: TransferSettings) -> float:
    """Return the median of all steps with these settings."""
    return statistics.median(each for block in seen.result[sending] for each in block)


def _told(case: CommunicationCase, seen: WallBlocks) -> dict[str, Any]:
    blocks = {f"{sending.schedule}_seconds": blocks for sending, blocks in seen.result.items()}
    made = {"stolen_share": seen.stolen_share, "runs": seen.runs}
    return {"model": case.model, "wire_over_compute": case.ratio, **blocks, **made}


def _judge(seen: WallBlocks, played: Mapping[TransferSettings, list[float]]) -> dict[str, Any]:
    """Hold a case against the steps that the core plays."""
    predicted = {sending: statistics.fmean(each) for sending, each in played.items()}
    foretold = predicted[FIFO] / predicted[PRIORITY]
    ratio, low, high = ratio_interval(seen.result[FIFO], seen.result[PRIORITY])
    medians = {sending: _median(seen, sending) for sending in (FIFO, PRIORITY)}
    return {
        "measured_ratio": ratio,
        "interval": [low, high],
        "predicted_ratio": foretold,
        "agrees": low <= foretold <= high,
        "predicted_seconds": [predicted[sending] for sending in (FIFO, PRIORITY)],
        "predicted_deviation": statistics.pstdev(played[PRIORITY]),
        "errors": [abs(predicted[each] - median) / median for each, median in medians.items()],
    }


def bench_comm(bench: Bench) -> BenchReport:
    """Communication hidden by priority, slices and credit, and the same on the wall clock.

    Compare schedules on the timeline, then on the wall clock: 3 native drives, compute paced, communication real.

    Figures on the timeline: `priority_over_fifo_max`, `_min` and `over_lower_bound` (see
    `csd_lab.bench.communication.comm_cases`), and those of the tuners (see `csd_lab.bench.communication.comm_tuners`).
    On the wall clock: `identical`, `wall_agrees` and `model_error_median` (see
    `csd_lab.bench.communication.comm_wall`).
    """
    bench.progress.stage("schedules on the timeline")
    figures, cases = comm_cases.figures()
    bench.progress.stage("tuners on the timeline")
    tuned, samples = comm_tuners.figures(bench.seed)
    samples["timeline"] = cases

    async def work(runs: WallRuns) -> tuple[bool, dict[CommunicationCase, WallBlocks]]:
        return await identical_weights(runs), await measure(runs)

    identical, seen = on_wall(bench, comm_cases.CASES[0].bytes_per_second, work)
    bench.progress.stage("what the core says of these runs")
    found, samples["fit"], samples["wall"] = compare(seen)
    return bench.report("wall", figures | tuned | {"identical": float(identical)} | found, samples, "native")
