"""Does the wall clock agree with the scheduling core? Paced drives behind a shaped link, schedules in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from csd_emu.communication.costs import LayerCost
from csd_emu.communication.simulate import steady_step_seconds
from csd_emu.progress import Progress
from firmware_agent.send_queue import Sending
from host.bench.comm_cases import (
    CASES,
    FIFO,
    PRIORITY,
    SLICE_SECONDS,
    Case,
)
from host.bench.comm_models import MODELS, spec_of
from host.bench.comm_runs import Blocks, Ran, WallRuns, ratio_interval

IDENTICAL_STEPS = 50
# Fast enough that a step is short, slow enough that slices wait and overtake.
_IDENTICAL_BYTES_PER_SECOND = 100e6
# Steps of a block and blocks of each schedule, by wire/compute.
_TURNS = {0.25: (4, 3), 1.0: (5, 4), 4.0: (6, 3)}
# What the link is measured on: ratios that no case has. On so slow a link nothing but bytes, and what slices cost,
# decides how long steps are; on so fast a one nothing of the link is seen. One model has few tensors, one has many.
_FEW, _MANY, _FAST = Case("alexnet", 2.0), Case("resnet", 2.0), Case("alexnet", 0.2)
_MEASURED_STEPS = 9
_HALVINGS, _ROUNDS = 10, 2
_MOST_STEP_SECONDS, _MOST_SLICE_SECONDS = 0.1, 0.005
# Drives' choices hang on moments so close to each other that the least delay changes them. Real ones vary from step to
# step, so what is foretold is the mean over slices that cost by so much less or more.
_SPREAD = (0.85, 1.0, 1.15)


@dataclass(frozen=True)
class Fit:
    """What of real drives and a real link differs from what is modelled.

    Attributes:
        payload_share: of the shaped bytes that are a model's: the rest is TLS', HTTP/2's and the frames'.
        step_seconds: what a step costs a drive beside its layers: taking records, looking after gradients, reporting.
        slice_seconds: what a slice costs beside its bytes.
    """

    payload_share: float
    step_seconds: float
    slice_seconds: float = SLICE_SECONDS

    def predict(self, case: Case, sending: Sending) -> float:
        """Return what the core says that a step takes."""
        costs = [(LayerCost("step", (), self.step_seconds, 0.0), *each) for each in case.costs]
        link = replace(case.link, bytes_per_second=self.payload_share * case.bytes_per_second)
        if sending.schedule == "fifo":
            return steady_step_seconds(costs, link, sending)
        slices = [factor * self.slice_seconds for factor in _SPREAD]
        return statistics.fmean(
            steady_step_seconds(costs, replace(link, slice_seconds=each), sending) for each in slices
        )


@dataclass(frozen=True)
class Measured:
    """Step seconds of what the link is measured on."""

    few_fifo: float
    few_priority: float
    many_fifo: float
    many_priority: float
    fast: float


async def identical(runs: WallRuns, progress: Progress) -> bool:
    """Return whether weights after 50 steps are the same, bit for bit, by priority as by FIFO, of all models."""
    same = True
    for model in MODELS:
        progress.stage(f"{model}: {IDENTICAL_STEPS} steps by FIFO and by priority, weights compared")
        results = [
            await runs.run(spec_of(model), Blocks((sending,), IDENTICAL_STEPS, 1), _IDENTICAL_BYTES_PER_SECOND)
            for sending in (FIFO, PRIORITY)
        ]
        same &= _same_weights(*results)
    return same


def _same_weights(one: Ran, other: Ran) -> bool:
    return one.weights.keys() == other.weights.keys() and all(
        array.tobytes() == other.weights[name].tobytes() for name, array in one.weights.items()
    )


async def fit_link(runs: WallRuns, progress: Progress) -> tuple[Fit, dict[str, Any]]:
    """Return what fits to runs that are none of the cases, and these runs' seconds."""
    seconds = []
    for case, settings in ((_FEW, (FIFO, PRIORITY)), (_MANY, (FIFO, PRIORITY)), (_FAST, (FIFO,))):
        progress.stage(f"measure the link with {case}")
        turns = Blocks(settings, _MEASURED_STEPS, 1)
        ran = await runs.run(spec_of(case.model, case.compute_seconds), turns, case.bytes_per_second)
        seconds += [block for (block,) in turns.sort(ran.step_seconds)]
    measured = Measured(*map(statistics.median, seconds))
    fit = fit_to(measured)
    return fit, {"step_seconds": seconds, "measured": asdict(measured), "fit": asdict(fit)}


def fit_to(measured: Measured) -> Fit:
    """Return the figures with which the core says what was measured, of `_FEW` and `_MANY` the sum.

    A share below 0.5 or above 1, a step's own seconds above 100 ms, and slices that cost more than 5 ms are not
    believed.
    """
    fit = Fit(1.0, 0.0)
    for _ in range(_ROUNDS):  # each hardly moves the others
        for name, low, high, predict, seconds in (
            ("step_seconds", 0.0, _MOST_STEP_SECONDS, _fast, measured.fast),
            ("payload_share", 1.0, 0.5, _fifo, measured.few_fifo + measured.many_fifo),
            ("slice_seconds", 0.0, _MOST_SLICE_SECONDS, _priority, measured.few_priority + measured.many_priority),
        ):
            fit = _solve(fit, name, predict, seconds, low, high)
    return fit


def _fast(fit: Fit) -> float:
    return fit.predict(_FAST, FIFO)


def _fifo(fit: Fit) -> float:
    return fit.predict(_FEW, FIFO) + fit.predict(_MANY, FIFO)


def _priority(fit: Fit) -> float:
    return fit.predict(_FEW, PRIORITY) + fit.predict(_MANY, PRIORITY)


def _solve(fit: Fit, name: str, predict: Callable[[Fit], float], wanted: float, least: float, most: float) -> Fit:
    """Return the fit with that figure between those with which the prediction is least and most: the one wanted."""
    for _ in range(_HALVINGS):
        middle = replace(fit, **{name: (least + most) / 2})
        least, most = ((least + most) / 2, most) if predict(middle) < wanted else (least, (least + most) / 2)
    return replace(fit, **{name: (least + most) / 2})


async def compare(runs: WallRuns, fit: Fit, progress: Progress) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return `wall_agrees` and `model_error_median`, and what was seen of each case.

    `wall_agrees` is the share of the cases where the interval of FIFO's seconds over those of priority holds the ratio
    that the core predicts. `model_error_median` is the median of |predicted - measured| / measured, over all cases and
    both schedules.
    """
    cases, errors = [], []
    for number, case in enumerate(CASES):
        progress.stage(f"{case}: FIFO and priority by turns")
        steps, blocks = _TURNS[case.ratio]
        turns = Blocks((FIFO, PRIORITY), steps, blocks)
        ran = await runs.run(spec_of(case.model, case.compute_seconds), turns, case.bytes_per_second)
        fifo, priority = turns.sort(ran.step_seconds)
        predicted = [fit.predict(case, sending) for sending in turns.settings]
        ratio, interval = predicted[0] / predicted[1], ratio_interval(fifo, priority)
        off = [_error(*each) for each in zip(predicted, (fifo, priority), strict=True)]
        errors += off
        cases.append(
            {
                "model": case.model,
                "wire_over_compute": case.ratio,
                "fifo_seconds": fifo,
                "priority_seconds": priority,
                "measured_ratio": interval.ratio,
                "interval": [interval.low, interval.high],
                "predicted_ratio": ratio,
                "agrees": interval.holds(ratio),
                "predicted_seconds": predicted,
                "errors": off,
            }
        )
        progress.advance((number + 1) / len(CASES))
    agree = sum(bool(case["agrees"]) for case in cases) / len(cases)
    return {"wall_agrees": agree, "model_error_median": statistics.median(errors)}, cases


def _error(predicted: float, blocks: list[list[float]]) -> float:
    measured = statistics.median(seconds for block in blocks for seconds in block)
    return abs(predicted - measured) / measured
