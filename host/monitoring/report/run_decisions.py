"""Decisions of a run's tuners: what each changed from which step on, why, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Literal

import msgspec

from firmware_agent.common.units import format_bytes
from host.core.records import EventRecord, RetuneRecord, RoundRecord, SendingRecord, StepRecord
from host.core.run_stats import RunStats
from host.core.slice_record import TransferChange
from host.monitoring.report.load_run import RunData
from host.monitoring.report.step_spans import list_retunes, list_steps
from host.policies.selection.selection_report import SelectionReport

# So many steps before a decision and behind it are compared, fewer where another decision is nearer.
COMPARED_STEPS = 20
# A note of the run begins so that says which layers are where, and why.
PLACEMENT_NOTE = "placement: "

Knob = Literal["devices", "layers", "batches", "slices"]


class RunDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision.

    Attributes:
        step: the first that it holds for.
        knob: what it is about: devices that train, layers on the host, records per device, or how tensors are sent.
        value: what holds from then on, for people.
        reason: as the tuner gave it; empty if it is not recorded.
        rate_ratio: records per array second of the steps behind it over those of the steps before it, up to
            `COMPARED_STEPS` of each, none of another decision; None where there are none.
    """

    step: int
    knob: Knob
    value: str
    reason: str
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
    """Return what was decided in the synchronous steps of a run; of any other run nothing.

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
    edges = [*sorted({steps[0].step, *(each.step for each in found)}), steps[-1].step + 1]
    spans = {first: [step for step in steps if first <= step.step < end] for first, end in pairwise(edges)}
    before = dict(pairwise([*reversed(spans), -1]))
    return [_measured(each, spans.get(before[each.step], []), spans[each.step]) for each in found if each.step in spans]


def explain_run(run: RunData) -> Explanation:
    """Return all decisions of a run."""
    return Explanation(
        run=str(run.path),
        clock=RunStats.of(run.rounds).clock if run.rounds else "",
        decisions=list_decisions(run.rounds, run.events, run.plan),
    )


def _measured(decision: RunDecision, before: Sequence[StepRecord], behind: Sequence[StepRecord]) -> RunDecision:
    old, new = _rate(before[-COMPARED_STEPS:]), _rate(behind[:COMPARED_STEPS])
    return msgspec.structs.replace(decision, rate_ratio=new / old) if old and new else decision


def _rate(steps: Sequence[StepRecord]) -> float:
    """Return records per array second, 0 without any."""
    seconds = sum(step.array_seconds for step in steps)
    return sum(step.samples for step in steps) / seconds if seconds else 0.0


def _batches(steps: Sequence[StepRecord], retunes: Sequence[RetuneRecord]) -> list[RunDecision]:
    first = {part.device: part.batch_size for part in steps[0].devices}
    begin = _decision(steps[0].step, "batches", _join(first), "planned before the first step")
    return [begin, *(_decision(each.step, "batches", _join(each.after), each.reason) for each in retunes)]


def _join(batches: dict[str, int]) -> str:
    """Return batches as text, devices in a row that have as many in one."""
    runs = [(size, [name for name, _ in own]) for size, own in groupby(batches.items(), key=lambda each: each[1])]
    return ", ".join(f"{names[0]}{f' to {names[-1]}' if len(names) > 1 else ''} {size}" for size, names in runs)


def _slices(steps: Sequence[StepRecord], changes: Sequence[TransferChange]) -> list[RunDecision]:
    """Return the first setting, and each that a step was sent with where the one before it was not."""
    first = _decision(steps[0].step, "slices", _sending(steps[0].sending), "the job's, or by model and link")
    changed = [now for before, now in pairwise(steps) if before.sending != now.sending]
    return [first, *(_decision(step.step, "slices", _sending(step.sending), _why(step, changes)) for step in changed)]


def _why(step: StepRecord, changes: Sequence[TransferChange]) -> str:
    """Return the reason of the last change up to a step, which may hold a step later than it was announced for."""
    until = [change for change in changes if change.step <= step.step]
    sizes = None if step.sending is None else (step.sending.slice_bytes, step.sending.credit_bytes)
    return until[-1].reason if until and (until[-1].slice_bytes, until[-1].credit_bytes) == sizes else ""


def _sending(sending: SendingRecord | None) -> str:
    if sending is None or sending.slice_bytes is None:
        return "whole tensors"
    credit = "no limit of credit" if sending.credit_bytes is None else f"credit {format_bytes(sending.credit_bytes)}"
    return f"{format_bytes(sending.slice_bytes)}, {credit}"


def _layers(steps: Sequence[StepRecord], events: Sequence[EventRecord]) -> list[RunDecision]:
    said = [event.detail.removeprefix(PLACEMENT_NOTE) for event in events if event.detail.startswith(PLACEMENT_NOTE)]
    placed = steps[0].placement
    value = "all on the drives" if placed is None else f"{placed.layers} on the host, from {placed.layer} on"
    return [_decision(steps[0].step, "layers", value, said[0])] if said else []


def _decision(step: int, knob: Knob, value: str, reason: str) -> RunDecision:
    return RunDecision(step=step, knob=knob, value=value, reason=reason)
