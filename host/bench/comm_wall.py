"""Does the wall clock agree with the scheduling core? Paced drives behind a shaped link, schedules in turn."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from csd_emu.communication.link import SharedLink
from csd_emu.communication.simulate import steady_step_seconds
from csd_emu.progress import Progress
from firmware_agent.send_queue import Sending
from host.bench.comm_cases import BLOCK_BYTES, CASES, COMPUTE_SECONDS, FIFO, PRIORITY, Case, predict
from host.bench.comm_models import MODELS, spec_of
from host.bench.comm_runs import Blocks, Ran, WallRuns, ratio_interval

IDENTICAL_STEPS = 50
# Fast enough that a step is short, slow enough that slices wait and overtake.
_IDENTICAL_BYTES_PER_SECOND = 100e6
# Steps of a block and blocks of each schedule, by wire/compute: slow steps are fewer.
_TURNS = {0.25: (9, 2), 1.0: (9, 2), 4.0: (7, 1)}
# What the link is fitted on: a model and ratio that is no case, and slices that no case has.
_FITTED = Case("transformer", 2.0)
_FITTED_SETTINGS = (FIFO, Sending("priority", 128 << 10, 256 << 10), Sending("priority", 16 << 10, 64 << 10))


@dataclass(frozen=True)
class Fit:
    """What of a real link differs from an ideal one.

    Attributes:
        payload_share: of the shaped bytes that are a model's: the rest is TCP's, TLS', HTTP/2's and the frames'.
        latency_seconds: from a slice's last byte on the wire to its being read, processes' wake-ups included.
        slice_seconds: what a slice costs beside its bytes.
    """

    payload_share: float
    latency_seconds: float
    slice_seconds: float

    def link(self, case: Case) -> SharedLink:
        """Return the link of a case as it really is."""
        return SharedLink(self.payload_share * case.bytes_per_second, self.latency_seconds, self.slice_seconds)


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
    """Return the link as it is, fitted on runs that are none of the cases, and these runs' seconds."""
    progress.stage(f"fit the link on {_FITTED}")
    turns = Blocks(_FITTED_SETTINGS, 7, 1)
    ran = await runs.run(spec_of(_FITTED.model, COMPUTE_SECONDS), turns, _FITTED.bytes_per_second)
    measured = [statistics.fmean(each) for each in turns.sort(ran.step_seconds)]
    fit = fit_to(measured)
    return fit, {"step_seconds": ran.step_seconds, "fit": fit.__dict__}


def fit_to(measured: list[float]) -> Fit:
    """Return the link with which the core comes nearest to the seconds measured with `_FITTED_SETTINGS`."""

    def off(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
        fit = Fit(float(values[0]), float(values[1]) / 1000, float(values[2]) / 1000)
        link = fit.link(_FITTED)
        predicted = [
            steady_step_seconds(_FITTED.costs, link, sending, block_bytes=BLOCK_BYTES) for sending in _FITTED_SETTINGS
        ]
        return [np.log(p / m) for p, m in zip(predicted, measured, strict=True)]

    best = least_squares(off, [0.97, 1.0, 0.2], bounds=([0.7, 0.05, 0.0], [1.0, 20.0, 5.0]), diff_step=0.02)
    share, latency, slice_milliseconds = best.x
    return Fit(float(share), float(latency) / 1000, float(slice_milliseconds) / 1000)


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
        predicted, interval = predict(case, fit.link(case)), ratio_interval(fifo, priority)
        off = [_error(predicted.fifo_seconds, fifo), _error(predicted.priority_seconds, priority)]
        errors += off
        cases.append(
            {
                "model": case.model,
                "wire_over_compute": case.ratio,
                "fifo_seconds": fifo,
                "priority_seconds": priority,
                "measured_ratio": interval.ratio,
                "interval": [interval.low, interval.high],
                "predicted_ratio": predicted.gain,
                "agrees": interval.holds(predicted.gain),
                "predicted_seconds": [predicted.fifo_seconds, predicted.priority_seconds],
                "errors": off,
            }
        )
        progress.advance((number + 1) / len(CASES))
    agree = sum(bool(case["agrees"]) for case in cases) / len(cases)
    return {"wall_agrees": agree, "model_error_median": statistics.median(errors)}, cases


def _error(predicted: float, seconds: list[float]) -> float:
    measured = statistics.fmean(seconds)
    return abs(predicted - measured) / measured
