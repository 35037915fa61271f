"""Review of where a model is cut, between steps: whether another cut suits the link better, as it is measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.host_node import link_of
from csd_emu.perfmodel.split.split_problem import DeviceCost, SplitProblem
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationStore
from firmware_agent.common.layer_names import find_layer
from firmware_agent.common.send_queue import TransferSettings
from host.core.records import StepRecord
from host.policies.split.cut_table import CutTable
from host.training.job_inputs import JobInputs
from host.training.split.decide_cut import choice_for, settle
from host.training.split.make_problem import make_situation
from host.training.split.split_request import PlacementRequest, of_run
from host.training.transfer_policy import choose_communication

# The link has changed if its bandwidth has by this factor; another cut must then win this one.
_CHANGED, _GAIN = 1.5, 1.1
# After a change the cut stays for so many steps.
FIRST_WAIT_STEPS = 24
# Shares of a bandwidth that are looked for, in powers of two, and how often the span is halved.
_LOWEST, _HIGHEST, _HALVINGS = -8.0, 8.0, 12


@dataclass(frozen=True)
class CutInForce:
    """Where a model is cut, and for which link.

    Attributes:
        layer: the host's first one; None with nothing moved.
        link_share: bandwidth that it, and the run with it, was planned for, over the array file's.
        policy: the split policy that decides.
        changes: how often it was changed.
        next_step: the first behind which it may be changed again.
    """

    layer: str | None
    link_share: float
    policy: str
    changes: int = 0
    next_step: int = 1


@dataclass(frozen=True)
class CutReview:
    """What a review found: another `cut` from now on, and the `reason`, for people."""

    cut: CutInForce
    reason: str


class SplitReview:
    """Looks at a job's cut again; one instance per run."""

    def __init__(self, inputs: JobInputs, store: CalibrationStore) -> None:
        """Take the job with its model and data, and the calibration tables."""
        self._inputs, self._store = inputs, store

    def look(self, cut: CutInForce, steps: Sequence[StepRecord]) -> CutReview | None:
        """Return what is better after these steps, all with the same batches; None if the cut stays.

        After each change of the cut the next one waits twice as many steps, so that a link that alternates costs ever
        less.

        Raises:
            CsdError: what it rests on cannot be known here.
        """
        request = self._request(self._inputs)
        batches = {part.device: part.batch_size for part in steps[-1].devices}
        request = replace(request, batches={name: batches.get(name, 0) for name in request.batches})
        if request.sending is not None and (sent := steps[-1].sending) is not None:
            request = replace(request, sending=TransferSettings("priority", sent.slice_bytes, sent.credit_bytes))
        problem = _as_computed(make_situation(request, self._store), cut.layer, steps)
        share = fit_link_share(problem, cut.layer, statistics.median(step.array_seconds for step in steps))
        if share is None or 1 / _CHANGED < share / cut.link_share < _CHANGED:
            return None
        return self._decide(cut, share, steps[-1].step)

    def _request(self, inputs: JobInputs) -> PlacementRequest:
        communication = choose_communication(inputs.config, inputs.job, inputs.models, inputs.evaluator)
        return of_run(inputs, communication, self._store)

    def _decide(self, cut: CutInForce, share: float, step: int) -> CutReview | None:
        request = self._request(replace(self._inputs, config=at_link_share(self._inputs.config, share)))
        best = settle(request, self._store, cut.policy)
        if best.decision.layer == cut.layer:
            return None
        own = choice_for(request, self._store, cut.layer, best.situation.layers)
        gain = best.records_per_second / own.records_per_second
        if gain < _GAIN:
            return None
        next_step, changes = step + FIRST_WAIT_STEPS * 2**cut.changes, cut.changes + 1
        later = CutInForce(best.decision.layer, share, cut.policy, changes, next_step)
        where = "every layer on the drives" if later.layer is None else f"cut before {later.layer!r}"
        link = f"the link carries {share:.0%} of the array file's bandwidth"
        reason = f"placement: {cut.policy}: {where}: {link}; {gain:.3g} times the records a second are expected"
        return CutReview(later, reason)


def at_link_share(config: ArrayConfig, share: float) -> ArrayConfig:
    """Return an array whose link has this share of its bandwidth."""
    whole = link_of(config.link, get_profile(config.host.profile)).bytes_per_second
    return config.model_copy(update={"link": config.link.model_copy(update={"bandwidth": share * whole})})


def fit_link_share(problem: SplitProblem, layer: str | None, step_seconds: float) -> float | None:
    """Return which share of its bandwidth the link has, if a step with this cut takes so long; None if none says it."""
    cut = _number_of(problem, layer)

    def predict(power: float) -> float:
        link = replace(problem.link, bytes_per_second=problem.link.bytes_per_second * 2**power)
        return CutTable(replace(problem, link=link), 0.0).work_out([cut])[cut]

    slow, fast = _LOWEST, _HIGHEST
    if not predict(fast) < step_seconds < predict(slow):
        return None
    for _ in range(_HALVINGS):
        middle = (slow + fast) / 2
        slow, fast = (middle, fast) if predict(middle) > step_seconds else (slow, middle)
    return float(2 ** ((slow + fast) / 2))


def _number_of(problem: SplitProblem, layer: str | None) -> int:
    names = [each.name for each in problem.layers]
    return len(names) if layer is None else find_layer(names, layer)


def _as_computed(problem: SplitProblem, layer: str | None, steps: Sequence[StepRecord]) -> SplitProblem:
    """Return the problem with drives, and a host, that compute for as long as they were seen to."""
    amounts, cut = CutTable(problem, 0.0).amounts, _number_of(problem, layer)
    expected = (amounts.forward_seconds + amounts.backward_seconds + amounts.encode_seconds)[:, cut].tolist()
    seen: dict[str, list[float]] = {}
    for part in (part for step in steps for part in step.devices):
        seen.setdefault(part.device, []).append(part.compute_seconds)
    pairs = zip(problem.drives, expected, strict=True)
    drives = tuple(_scaled(drive, _ratio(statistics.median(seen[drive.device]), own)) for drive, own in pairs)
    tails = [step.placement.tail_seconds for step in steps if step.placement is not None]
    by = _ratio(statistics.median(tails), float(amounts.host_seconds[cut])) if tails else 1.0
    host = problem.host
    host = replace(host, forward_seconds=by * host.forward_seconds, backward_seconds=by * host.backward_seconds)
    return replace(problem, drives=drives, host=host)


def _ratio(seen_seconds: float, expected_seconds: float) -> float:
    return seen_seconds / expected_seconds if expected_seconds > 0 and seen_seconds > 0 else 1.0


def _scaled(drive: DeviceCost, by: float) -> DeviceCost:
    return replace(
        drive,
        forward_seconds=by * drive.forward_seconds,
        backward_seconds=by * drive.backward_seconds,
        encode_seconds=by * drive.encode_seconds,
    )
