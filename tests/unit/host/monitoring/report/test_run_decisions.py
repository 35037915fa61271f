from typing import Any

import msgspec
import pytest

from host.core.records import EventKind, EventRecord, PlacementRecord, RoundRecord, SendingRecord, StepRecord
from host.core.slice_record import TransferChange
from host.monitoring.report.run_decisions import (
    COMPARED_STEPS,
    LEAST_STEPS,
    PLACEMENT_NOTE,
    RunDecision,
    list_decisions,
)
from host.monitoring.report.step_spans import list_steps
from host.policies.split.choose_cut import decide_for
from host.training.split.decide_cut import explain
from tests.support.records import round_record
from tests.support.sync_records import Disturbed, SyncRun
from tests.unit.csd_emu.perfmodel.split.test_placement import PLAIN

SLICES = SendingRecord("priority", 64 << 10, 256 << 10)


def run_with(change: int | None = None, **fields: Any) -> list[RoundRecord]:
    """Rounds, sent in slices from a step on, which takes half as long then."""
    plain = SyncRun(drives=2, steps=80, round_steps=20, **fields)
    if change is None:
        return plain.make()
    seconds = {step.step: step.array_seconds for step in list_steps(plain.make())}
    spoiled = {step: {"sending": SLICES, "array_seconds": seconds[step] / 2} for step in range(change, 81)}
    rounds = SyncRun(drives=2, steps=80, round_steps=20, spoiled=spoiled, **fields).make()
    told = TransferChange(step=change, slice_bytes=64 << 10, credit_bytes=256 << 10, reason="they pay", gain=0.5)
    return [msgspec.structs.replace(rounds[0], transfer_changes=[told]), *rounds[1:]]


def of_knob(decisions: list[RunDecision], knob: str) -> list[RunDecision]:
    return [each for each in decisions if each.knob == knob]


def test_a_run_begins_with_its_batches_and_each_retune_is_a_decision_with_its_reason() -> None:
    rounds = run_with(disturbed=(Disturbed("csd-01", 20, 30, 100),))
    retunes = [retune for record in rounds for retune in record.retunes]
    first, *later = of_knob(list_decisions(rounds, []), "batches")
    assert (first.step, first.value, first.reason, first.rate_ratio) == (
        *(1, "csd-00 and csd-01 32, host 514"),
        *("planned before the first step", None),
    )
    assert [(each.step, each.reason) for each in later] == [(retune.step, retune.reason) for retune in retunes]
    assert later[0].value.startswith("csd-01 32 -> ")
    assert [each.expected for each in later] == [
        f"{retune.gain_steps:.3g} steps saved in the rest of the run" for retune in retunes
    ]


@pytest.mark.parametrize("change", [1 + LEAST_STEPS, 20, 41, 81 - LEAST_STEPS])
def test_what_came_of_a_decision_is_measured_on_both_sides_of_it(change: int) -> None:
    rounds = run_with(change, disturbed=())
    (whole, slices) = of_knob(list_decisions(rounds, []), "slices")
    assert (whole.step, whole.value, whole.reason, whole.rate_ratio) == (
        *(1, "whole tensors"),
        *("the job's, or by model and link", None),
    )
    assert (slices.step, slices.reason, slices.value) == (change, "they pay", "65.5 kB, credit 262.1 kB")
    assert slices.rate_ratio == pytest.approx(2, rel=0.02)
    assert (whole.expected, slices.expected) == ("", "1.649 times the records/s")


@pytest.mark.parametrize("change", [LEAST_STEPS, 82 - LEAST_STEPS])
def test_what_came_of_a_decision_is_not_known_from_fewer_steps(change: int) -> None:
    assert [each.rate_ratio for each in list_decisions(run_with(change, disturbed=()), [])] == [None, None, None]


def test_an_epochs_last_step_which_is_smaller_says_nothing_of_a_decision() -> None:
    rounds = run_with(41, disturbed=())

    def shorten(step: StepRecord) -> StepRecord:
        parts = [msgspec.structs.replace(part, batch_size=1) for part in step.devices]
        return msgspec.structs.replace(step, devices=parts) if step.step in (40, 45) else step

    spoiled = [msgspec.structs.replace(each, steps=[shorten(step) for step in each.steps]) for each in rounds]
    (_, slices) = of_knob(list_decisions(spoiled, []), "slices")
    assert slices.rate_ratio == pytest.approx(2, rel=0.02)


def test_no_step_of_another_decision_is_compared() -> None:
    """Steps are sent in slices from 40 on; batches fall in 44 and rise in 64; work competes from 40 to 59."""
    rounds = run_with(40, disturbed=(Disturbed("csd-01", 40, 20, 300),))
    decisions = list_decisions(rounds, [])
    assert [(each.step, each.knob) for each in decisions[2:]] == [(40, "slices"), (44, "batches"), (64, "batches")]
    steps = {step.step: step for step in list_steps(rounds)}

    def rate(numbers: range) -> float:
        return sum(steps[n].samples for n in numbers) / sum(steps[n].array_seconds for n in numbers)

    assert COMPARED_STEPS == 20
    want = [rate(range(40, 44)) / rate(range(20, 40)), rate(range(44, 60)) / rate(range(40, 44))]
    want.append(rate(range(64, 81)) / rate(range(60, 64)))
    assert [each.rate_ratio for each in decisions[2:]] == pytest.approx(want)


def test_where_layers_are_is_said_with_the_note_that_explains_it() -> None:
    said = explain(decide_for(PLAIN, None, "nothing is won"))[0]
    assert said.startswith(PLACEMENT_NOTE)
    (layers,) = of_knob(list_decisions(run_with(), [EventRecord("host", EventKind.NOTE, said)]), "layers")
    assert (layers.step, layers.value) == (1, "all on the drives")
    assert layers.reason.endswith("nothing is won (expected)")


def test_a_cut_that_changes_on_the_way_is_a_decision_with_its_own_note_and_gain() -> None:
    """From step 40 on four layers are on the host, and a step takes half as long."""
    placed = PlacementRecord(
        layer="4", layers=4, state_bytes=1, up_bytes=1, down_bytes=1, tail_seconds=0.1, clock="modelled"
    )

    def move(step: StepRecord) -> StepRecord:
        moved = msgspec.structs.replace(step, placement=placed, array_seconds=step.array_seconds / 2)
        return step if step.step < 40 else moved

    rounds = [
        msgspec.structs.replace(each, steps=[move(step) for step in each.steps], transfer_changes=[], retunes=[])
        for each in run_with()
    ]
    notes = ["placement: auto: at first", "another note", "placement: auto: the link changed", "placement: auto: late"]
    first, later = of_knob(
        list_decisions(rounds, [EventRecord("host", EventKind.NOTE, note) for note in notes]), "layers"
    )
    assert (first.step, later.step) == (1, 40)
    assert (first.reason, later.reason) == ("auto: at first", "auto: the link changed")
    assert later.value == "4 on the host, from 4 on"
    assert later.rate_ratio == pytest.approx(2, rel=0.05)


def test_a_federated_run_has_no_decisions() -> None:
    assert list_decisions([round_record([])], []) == []
