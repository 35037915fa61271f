"""Decisions of a run's tuners: what each changed from which step on, why, and what came of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from host.core.records import EventRecord, RetuneRecord, RoundRecord, StepRecord
from host.core.run_stats import RunStats
from host.core.slice_record import TransferChange
from host.monitoring.decision_text import Knob, describe_batches, describe_placement, describe_sending, join_batches
from host.monitoring.report.load_run import RunData
from host.monitoring.report.step_spans import list_retunes, list_steps
from host.policies.selection.selection_report import SelectionReport

# So many steps before a decision and behind it are compared; fewer where another decision is nearer, but no fewer than
# the second number. A step is one of these if it has this share of the records that others of its batches have.
COMPARED_STEPS, LEAST_STEPS, _WHOLE_SHARE = 20, 2, 0.9
_MOST_NAMES = 8
# A note of the run begins so that says which layers are where, and why.
PLACEMENT_NOTE = "placement: "


class RunDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision.

    Attributes:
        step: the first that it holds for.
        knob: what it is about.
        value: what holds from then on, for people; of batches on the way, those that change.
        reason: as the tuner gave it; empty if it is not recorded.
        expected: what the tuner expected of it, for people; empty if that is not recorded.
        rate_ratio: records per array second of the steps behind it over those of the steps before it, up to
            `COMPARED_STEPS` of each, none of another decision or beside other competing work, nor an epoch's last one;
            None with fewer than `LEAST_STEPS` of either.
    """

    step: int
    knob: Knob
    value: str
    reason: str
    expected: str = ""
    rate_ratio: float | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All decisions of a run.

    Attributes:
        run: the run directory.
        clock: whose seconds the rates rest on; several joined by ``+``.
        decisions: in the order of their steps.
    """

    run: str
    clock: str
    decisions: list[RunDecision]


def list_decisions(
    rounds: Sequence[RoundRecord], events: Sequence[EventRecord], plan: SelectionReport | None = None
) -> list[RunDecision]:
    """Return what was decided in the synchronous steps of a run, of devices the last choice; of any other run nothing.

    Args:
        rounds: of the run.
        events: of it; one of them says why layers are where they are.
        plan: which devices train, if a planner chose them.
    """
    if not (steps := list_steps(rounds)):
        return []
    changes = [change for record in rounds for change in record.transfer_changes]
    found = [*_layers(steps, events), *_batches(steps, list_retunes(rounds)), *_slices(steps, changes)]
    if plan is not None:
        found.append(_decision(plan.step + 1, "devices", plan.chosen.name, " ".join(plan.reasons)))
    found.sort(key=lambda each: each.step)
    other = [now.step for then, now in pairwise(steps) if then.disturbed != now.disturbed]
    firsts = [steps[0].step, *(each.step for each in found), *other]
    spans = _spans(
        _whole_steps(steps, [each.step for each in found if each.knob in ("batches", "devices", "layers")]), firsts
    )
    before = dict(pairwise([*reversed(spans), -1]))
    return [_measured(each, spans.get(before[each.step], []), spans[each.step]) for each in found if each.step in spans]


def explain_run(run: RunData) -> Explanation:
    """Return all decisions of a run."""
    return Explanation(
        run=str(run.path),
        clock=RunStats.of(run.rounds).clock if run.rounds else "",
        decisions=list_decisions(run.rounds, run.events, run.plan),
    )


def _whole_steps(steps: Sequence[StepRecord], changes: Sequence[int]) -> list[StepRecord]:
    """Return the steps without those that are smaller than others of the same batches: the last ones of epochs."""
    whole = list[StepRecord]()
    for own in _spans(steps, [0, *changes]).values():
        least = _WHOLE_SHARE * max((step.samples for step in own), default=0)
        whole += [step for step in own if step.samples >= least or step.late or step.lost]
    return whole


def _spans(steps: Sequence[StepRecord], firsts: Iterable[int]) -> dict[int, list[StepRecord]]:
    """Return the numbers in `firsts`, in order, each -> the steps from it on to the next one's."""
    edges = [*sorted(set(firsts)), math.inf]
    return {int(first): [step for step in steps if first <= step.step < end] for first, end in pairwise(edges)}


def _measured(decision: RunDecision, before: Sequence[StepRecord], behind: Sequence[StepRecord]) -> RunDecision:
    if min(len(before), len(behind)) < LEAST_STEPS:
        return decision
    old, new = _rate(before[-COMPARED_STEPS:]), _rate(behind[:COMPARED_STEPS])
    return msgspec.structs.replace(decision, rate_ratio=new / old) if old and new else decision


def _rate(steps: Sequence[StepRecord]) -> float:
    """Return records per array second, 0 without any."""
    seconds = sum(step.array_seconds for step in steps)
    return sum(step.samples for step in steps) / seconds if seconds else 0.0


def _batches(steps: Sequence[StepRecord], retunes: Sequence[RetuneRecord]) -> list[RunDecision]:
    first = {part.device: part.batch_size for part in steps[0].devices}
    begin = _decision(steps[0].step, "batches", join_batches(first), "planned before the first step")
    return [begin, *map(_retune, retunes)]


def _retune(retune: RetuneRecord) -> RunDecision:
    expected = ""
    if gain := retune.gain_steps:  # 0 of one that was not made for a gain
        expected = "unknown" if math.isnan(gain) else f"{gain:.3g} steps saved in the rest of the run"
    return _decision(retune.step, "batches", describe_batches(retune, _MOST_NAMES), retune.reason, expected)


def _slices(steps: Sequence[StepRecord], changes: Sequence[TransferChange]) -> list[RunDecision]:
    """Return the first setting, and each that a step was sent with where the one before it was not."""
    first = _decision(steps[0].step, "slices", describe_sending(steps[0].sending), "the job's, or by model and link")
    changed = [now for before, now in pairwise(steps) if before.sending != now.sending]
    return [
        first,
        *(_decision(step.step, "slices", describe_sending(step.sending), *_why(step, changes)) for step in changed),
    ]


def _why(step: StepRecord, changes: Sequence[TransferChange]) -> tuple[str, str]:
    """Return reason and expectation of the last change up to a step; it may hold later than it was announced for."""
    until = [change for change in changes if change.step <= step.step]
    sizes = None if step.sending is None else (step.sending.slice_bytes, step.sending.credit_bytes)
    if not until or (until[-1].slice_bytes, until[-1].credit_bytes) != sizes:
        return "", ""
    gain = until[-1].gain
    return until[-1].reason, "" if gain is None else f"{math.exp(gain):.3f} times the records/s"


def _layers(steps: Sequence[StepRecord], events: Sequence[EventRecord]) -> list[RunDecision]:
    """Return where the model was cut, and each change of that; nothing where it was not left to a policy."""
    said = [event.detail.removeprefix(PLACEMENT_NOTE) for event in events if event.detail.startswith(PLACEMENT_NOTE)]
    cuts = [None if step.placement is None else step.placement.layer for step in steps]
    changed = [now for now, (then, cut) in zip(steps[1:], pairwise(cuts), strict=True) if then != cut]
    pairs = zip([steps[0], *changed], said, strict=False)  # of the last ones no step may have come
    return [_decision(step.step, "layers", describe_placement(step.placement), why) for step, why in pairs]


def _decision(step: int, knob: Knob, value: str, reason: str, expected: str = "") -> RunDecision:
    return RunDecision(step=step, knob=knob, value=value, reason=reason, expected=expected)
