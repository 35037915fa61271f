"""Fit of real drives and a real link to the model, from runs that are none of the cases.

Three figures, each from the runs in which it shows:

* what a step costs beside its layers, where computing is what takes the time;
* what share of the link's bytes is a model's, from FIFO's steps where the wire takes twice as long as computing: its
  slices are whole tensors, so what a slice costs hardly matters;
* what a slice costs, from priority's steps there; models disagree about it, see docs/benchmarks.md.

All four models decide, by absolute errors of the logs: one that the core is wrong about decides less then than with
squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from csd_emu.perfmodel.overlap.layer_work import LayerCost
from csd_emu.perfmodel.overlap.steady_steps import steady_step_seconds
from csd_emu.perfmodel.overlap.turn_simulation import TurnSimulation
from csd_lab.bench.communication.comm_cases import FIFO, PRIORITY, SLICE_SECONDS, CommunicationCase
from csd_lab.bench.communication.comm_models import MODELS
from csd_lab.bench.communication.comm_runs import SHAPED_LATENCY_SECONDS
from csd_lab.bench.process_pool import Spread
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
            return [steady_step_seconds(costs, link, sending)]
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
