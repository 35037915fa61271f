"""Does the wall clock agree with the scheduling core? Paced drives behind a shaped link, schedules in turn."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from csd_emu.communication.costs import LayerCost
from csd_emu.communication.link import SharedLink
from csd_emu.communication.simulate import steady_step_seconds
from csd_emu.progress import Progress
from firmware_agent.send_queue import Sending
from host.bench.comm_cases import (
    CASES,
    COMPUTE_SECONDS,
    FIFO,
    LATENCY_SECONDS,
    PRIORITY,
    SLICE_SECONDS,
    Case,
)
from host.bench.comm_models import MODELS, spec_of
from host.bench.comm_runs import Blocks, Ran, WallRuns, ratio_interval

IDENTICAL_STEPS = 50
# Fast enough that a step is short, slow enough that slices wait and overtake.
_IDENTICAL_BYTES_PER_SECOND = 100e6
# Steps of a block and blocks of each schedule, by wire/compute: slow steps are fewer.
_TURNS = {0.25: (9, 1), 1.0: (9, 2), 4.0: (8, 1)}
# What the link is measured on, by FIFO: ratios that no case has. So slow a link that nothing but its bytes decides, and
# so fast a one that nothing of it does.
_SLOW, _FAST = Case("alexnet", 2.0), Case("alexnet", 0.2)
_MEASURED_STEPS = 9
_HALVINGS = 30


@dataclass(frozen=True)
class Fit:
    """What of real drives and a real link differs from what is modelled.

    Attributes:
        payload_share: of the shaped bytes that are a model's: the rest is TLS', HTTP/2's and the frames'.
        step_seconds: what a step costs a drive beside its layers: taking records, looking after gradients, reporting.
    """

    payload_share: float
    step_seconds: float

    def predict(self, case: Case, sending: Sending) -> float:
        """Return what the core says that a step takes."""
        link = SharedLink(self.payload_share * case.bytes_per_second, LATENCY_SECONDS, SLICE_SECONDS)
        costs = [(LayerCost("step", (), self.step_seconds, 0.0), *each) for each in case.costs]
        return steady_step_seconds(costs, link, sending)


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
    progress.stage(f"measure the link with {_SLOW} and {_FAST}")
    seconds = []
    for case in (_SLOW, _FAST):
        turns = Blocks((FIFO,), _MEASURED_STEPS, 1)
        ran = await runs.run(spec_of(case.model, COMPUTE_SECONDS), turns, case.bytes_per_second)
        seconds += turns.sort(ran.step_seconds)
    fit = fit_to(*map(statistics.median, seconds))
    return fit, {"step_seconds": seconds, "fit": asdict(fit)}


def fit_to(slow_seconds: float, fast_seconds: float) -> Fit:
    """Return the figures with which the core says what was measured of `_SLOW` and of `_FAST`.

    A share below 0.5 or above 1, or a step's own seconds below 0 or above a step's compute, are not believed.
    """
    fit = Fit(1.0, 0.0)
    for _ in range(3):  # each hardly moves the other
        step = functools.partial(_with_step, fit)
        fit = replace(fit, step_seconds=_solve(step, fast_seconds, 0.0, COMPUTE_SECONDS))
        bytes_each = functools.partial(_with_bytes, fit)
        fit = replace(fit, payload_share=1 / _solve(bytes_each, slow_seconds, 1.0, 2.0))
    return fit


def _with_step(fit: Fit, step_seconds: float) -> float:
    return replace(fit, step_seconds=step_seconds).predict(_FAST, FIFO)


def _with_bytes(fit: Fit, shaped_bytes: float) -> float:
    """Return the prediction if a byte of the model takes so many bytes of the link."""
    return replace(fit, payload_share=1 / shaped_bytes).predict(_SLOW, FIFO)


def _solve(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2


async def compare(runs: WallRuns, fit: Fit, progress: Progress) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return `wall_agrees` and `model_error_median`, and what was seen of each case.

    `wall_agrees` is the share of the cases where the interval of FIFO's mean seconds over those of priority holds the
    ratio that the core predicts. `model_error_median` is the median of |predicted - measured| / measured, over all
    cases and both schedules.
    """
    cases, errors = [], []
    for number, case in enumerate(CASES):
        progress.stage(f"{case}: FIFO and priority by turns")
        steps, blocks = _TURNS[case.ratio]
        turns = Blocks((FIFO, PRIORITY), steps, blocks)
        ran = await runs.run(spec_of(case.model, COMPUTE_SECONDS), turns, case.bytes_per_second)
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


def _error(predicted: float, seconds: list[float]) -> float:
    measured = statistics.fmean(seconds)
    return abs(predicted - measured) / measured
