"""Agreement of the wall clock with the scheduling core: paced drives behind a shaped link, schedules in turn."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from csd_emu.util.progress import Progress
from csd_lab.bench.communication.comm_cases import CASES, FIFO, PRIORITY, CommunicationCase
from csd_lab.bench.communication.comm_fit import COMPUTE_BOUND, WIRE_BOUND, errors, fit_to
from csd_lab.bench.communication.comm_models import MODELS, spec_of
from csd_lab.bench.communication.comm_runs import Blocks, WallRuns, WallSteps, ratio_interval
from csd_lab.bench.cpu_steal import undisturbed
from csd_lab.bench.harness import spread_over
from firmware_agent.common.send_queue import TransferSettings

IDENTICAL_STEPS = 50
# Fast enough that a step is short, slow enough that slices wait and overtake.
_IDENTICAL_BYTES_PER_SECOND = 100e6
# Steps of a block and blocks of each schedule, by wire/compute.
_TURNS = {0.25: (4, 3), 1.0: (5, 4), 4.0: (6, 3)}
# The same of a run that the link is measured on.
_MEASURED_TURNS = (6, 2)


@dataclass(frozen=True)
class WallBlocks:
    """Step seconds of a case, in blocks, by its settings.

    Attributes:
        stolen_share: of the processor time that was wanted, what the machine's own host gave to others.
        runs: how many were made; that with the least share counts.
    """

    case: CommunicationCase
    seconds: dict[TransferSettings, list[list[float]]]
    stolen_share: float = 0.0
    runs: int = 1

    def median(self, sending: TransferSettings) -> float:
        """Return the median of all steps with these settings."""
        return statistics.median(each for block in self.seconds[sending] for each in block)


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


def _same_weights(one: WallSteps, other: WallSteps) -> bool:
    return one.weights.keys() == other.weights.keys() and all(
        array.tobytes() == other.weights[name].tobytes() for name, array in one.weights.items()
    )


def plan() -> list[tuple[CommunicationCase, Blocks]]:
    """Return the runs in their order: the cases, and at a quarter and at three quarters of them half of the others.

    So a machine that gets slower or faster by and by is in the middle what it is for the others.
    """
    cases = [(case, Blocks((FIFO, PRIORITY), *_TURNS[case.ratio])) for case in CASES]
    others = [(case, Blocks((FIFO, PRIORITY), *_MEASURED_TURNS)) for case in WIRE_BOUND]
    others += [(case, Blocks((FIFO,), *_MEASURED_TURNS)) for case in COMPUTE_BOUND]
    quarter = len(cases) // 4
    return [*cases[:quarter], *others[::2], *cases[quarter : 3 * quarter], *others[1::2], *cases[3 * quarter :]]


async def measure(runs: WallRuns, progress: Progress) -> list[WallBlocks]:
    """Make all runs of the plan, those again from which much processor time was stolen (see `undisturbed`)."""
    planned = plan()

    async def make(case: CommunicationCase, turns: Blocks) -> dict[TransferSettings, list[list[float]]]:
        progress.stage(f"{case}: {' and '.join(each.schedule for each in turns.settings)} by turns")
        ran = await runs.run(spec_of(case.model, case.compute_seconds), turns, case.bytes_per_second)
        return dict(zip(turns.settings, turns.sort(ran.step_seconds), strict=True))

    made = await undisturbed([partial(make, *each) for each in planned], progress.advance)
    pairs = zip(planned, made, strict=True)
    return [WallBlocks(case, each.result, each.stolen_share, each.runs) for (case, _), each in pairs]


def compare(
    seen: Sequence[WallBlocks], processes: int | None = None
) -> tuple[dict[str, float], dict[str, Any], list[dict[str, Any]]]:
    """Return `wall_agrees` and `model_error_median`, what was fitted, and what was seen of each case.

    `wall_agrees` is the share of the cases where the interval of FIFO's seconds over those of priority holds the ratio
    that the core predicts. `model_error_median` is the median of |predicted - measured| / measured, over all cases and
    both schedules.

    Args:
        seen: all runs of the plan.
        processes: that share the simulations; None for one per processor.
    """
    measured = {
        (each.case, sending): each.median(sending)
        for each in seen
        if each.case not in CASES
        for sending in each.seconds
    }
    of_cases = [each for each in seen if each.case in CASES]
    pairs = [(each.case, sending) for each in of_cases for sending in each.seconds]
    with spread_over(processes) as spread:
        fit = fit_to(measured, spread)
        played = dict(zip(pairs, spread(fit.play, *zip(*pairs, strict=True)), strict=True))
    cases = [_judge(each, {sending: played[each.case, sending] for sending in each.seconds}) for each in of_cases]
    found = {
        "wall_agrees": sum(bool(case["agrees"]) for case in cases) / len(cases),
        "model_error_median": statistics.median(error for case in cases for error in case["errors"]),
    }
    fitted = {
        "fit": asdict(fit),
        "errors": errors(fit, measured),
        "seconds": [_told(each) for each in seen if each.case not in CASES],
    }
    return found, fitted, cases


def _told(seen: WallBlocks) -> dict[str, Any]:
    blocks = {f"{sending.schedule}_seconds": blocks for sending, blocks in seen.seconds.items()}
    made = {"stolen_share": seen.stolen_share, "runs": seen.runs}
    return {"model": seen.case.model, "wire_over_compute": seen.case.ratio, **blocks, **made}


def _judge(seen: WallBlocks, played: Mapping[TransferSettings, list[float]]) -> dict[str, Any]:
    """Hold a case against the steps that the core plays."""
    predicted = {sending: statistics.fmean(each) for sending, each in played.items()}
    foretold = predicted[FIFO] / predicted[PRIORITY]
    ratio, low, high = ratio_interval(seen.seconds[FIFO], seen.seconds[PRIORITY])
    return _told(seen) | {
        "measured_ratio": ratio,
        "interval": [low, high],
        "predicted_ratio": foretold,
        "agrees": low <= foretold <= high,
        "predicted_seconds": [predicted[sending] for sending in (FIFO, PRIORITY)],
        "predicted_deviation": statistics.pstdev(played[PRIORITY]),
        "errors": [abs(predicted[each] - seen.median(each)) / seen.median(each) for each in (FIFO, PRIORITY)],
    }
