"""Cuts that change while a job runs, in simulated runs: the product's own loop, tuners and review."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from csd_lab.bench.joint_tuning import joint_cases, simulated_training
from csd_lab.bench.joint_tuning.joint_cases import CUT, JointScenario, ScenarioWorld, request_of
from csd_lab.bench.joint_tuning.simulated_training import SimulatedTraining, Simulation, simulate_training
from firmware_agent.common.errors import CheckpointError, ConfigurationError
from host.app import reviewed_training
from host.app.prepare import RunRequest
from host.app.reviewed_training import ReviewedTraining
from host.core.records import DeviceStep, PlacementRecord, StepRecord
from host.core.states.training_state import TrainingState
from host.training.split import split_review
from host.training.split.split_review import CutInForce, CutReview, SplitReview

# The link is cut to a tenth for 24 of 60 steps. Nobody tunes batches, so each step has 96 records.
SCENARIO = JointScenario(1, "late heavy layers", (2, 1, 0), 2e7, 1e-4, True, CUT, 0, 0.3, 0.75, 0.1)
KEYS = {"batch_size": 32, "placement": "auto", "rounds": 3, "sync": {"round_steps": 20}}


@pytest.fixture(autouse=True)
def few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_cases, "RECORDS", 20_000)
    joint_cases.load_model.cache_clear()


def run(scenario: JointScenario = SCENARIO, **keys: object) -> SimulatedTraining:
    return simulate_training(request_of(scenario, **{**KEYS, **keys}), ScenarioWorld(scenario))


def told(result: SimulatedTraining) -> list[str]:
    return [note.partition(": the link")[0] for note in result.notes if note.startswith("placement: ")]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["fifo", "priority"])
def test_a_link_that_is_cut_has_the_model_cut_elsewhere_and_back(schedule: str) -> None:
    """After a change steps are sent otherwise, which is no change of the link."""
    changing = run(communication=schedule)
    assert told(changing) == ["placement: auto: cut before '6'", "placement: auto: cut before '2'"]
    shares = [note.partition("the link carries ")[2].partition("%")[0] for note in changing.notes if "carries" in note]
    assert shares == ["10", "100"]


@pytest.mark.slow
def test_a_cut_that_changes_pays_and_batches_that_it_changes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    changing = run()
    assert [step.step for step in changing.steps] == list(range(1, 61))
    retuned = run(replace(SCENARIO, bandwidth=1e8), tuner="hypertune")
    (begun,) = (each for each in retuned.retunes if each.reason == "begun anew with another cut")
    of_step = {step.step: {part.device: part.batch_size for part in step.devices} for step in retuned.steps}
    assert (of_step[begun.step - 1], of_step[begun.step]) == (begun.before, begun.after)
    assert {step.samples for step in changing.steps} == {96}
    monkeypatch.setattr(simulated_training, "first_cut", lambda *_: None)
    assert changing.records_per_second > 1.15 * run().records_per_second


@pytest.mark.slow
def test_what_is_expected_is_what_comes_of_it() -> None:
    changing = run(replace(SCENARIO, end=1.0))
    (note,) = (note for note in changing.notes if "expected" in note)
    expected = float(note.rpartition("; ")[2].split()[0])
    seconds = [step.array_seconds for step in changing.steps]
    assert expected == pytest.approx(seconds[18] / seconds[40], rel=0.03)


@pytest.mark.slow
def test_a_link_that_stays_changes_nothing_whatever_the_drives_do() -> None:
    for kind in (joint_cases.SLOWED, joint_cases.LOST):
        assert told(run(replace(SCENARIO, kind=kind, factor=0.4), tuner="hypertune")) == []


def simulation(done: int = 0) -> Simulation:
    made = Simulation(request_of(SCENARIO, **KEYS), ScenarioWorld(SCENARIO))
    made.progress.records = done
    return made


async def take(training: ReviewedTraining, rounds: int) -> TrainingState:
    for _ in range(rounds):
        await training.run_round()
    return training.state()


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_that_is_resumed_has_the_cut_that_it_had_and_decides_the_same(rounds: int) -> None:
    """The cut changes in step 21 or so, and back in step 48: the second checkpoint has another cut than the plan."""
    whole, first = simulation(), simulation()
    asyncio.run(take(whole.begin(), 3))
    state = asyncio.run(take(first.begin(), rounds))
    assert (state.progress["cut"]["layer"] == "2") == (rounds == 1)
    second = simulation(sum(step.samples for step in first.run.steps))
    training = second.begin()
    training.restore(state)
    assert training.state().progress == state.progress
    asyncio.run(take(training, 3 - rounds))
    again = [*first.run.steps, *second.run.steps]
    assert [(step.step, step.samples, step.array_seconds) for step in again] == [
        (step.step, step.samples, step.array_seconds) for step in whole.run.steps
    ]


def test_a_checkpoint_whose_cut_is_none_is_refused() -> None:
    training = simulation().begin()
    state = training.state()
    for wrong in ({"layer": 3}, {"layer": "2", "link_share": "much"}, 7):
        with pytest.raises(CheckpointError, match="where the model is cut"):
            training.restore(replace(state, progress={**state.progress, "cut": wrong}))


@pytest.mark.slow
def test_a_review_that_fails_leaves_the_cut_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> CutReview:
        raise ConfigurationError("no table")

    monkeypatch.setattr(SplitReview, "look", fail)
    failing = run()
    assert len(failing.steps) == 60
    assert next(note for note in failing.notes if "no table" in note) == "the model stays cut as it is: no table"


@pytest.mark.slow
def test_after_a_change_the_next_one_waits_ever_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    whole = SplitReview.look

    def look(self: SplitReview, cut: CutInForce, steps: Sequence[StepRecord]) -> CutReview | None:
        if (found := whole(self, cut, steps)) is not None:
            looked.append(found.cut.next_step - steps[-1].step)
        return found

    monkeypatch.setattr(SplitReview, "look", look)
    run()
    assert looked == [split_review.FIRST_WAIT_STEPS, 2 * split_review.FIRST_WAIT_STEPS]


@pytest.mark.parametrize(("tail", "changed"), [(0.0, True), (0.5, False)])
def test_a_host_that_takes_longer_is_no_change_of_the_link(tail: float, changed: bool) -> None:
    """In the last steps, half a second is the host's, or is not."""
    training = simulation().begin()
    assert isinstance(training, ReviewedTraining)
    record = PlacementRecord(
        layer="2", layers=3, state_bytes=1, up_bytes=1, down_bytes=1, tail_seconds=0.01, clock="wall"
    )
    parts = [DeviceStep(device=name, batch_size=32, compute_seconds=0.01) for name in ("csd-00", "csd-01")]
    due = []
    for number in range(1, 8):
        seen = structs.replace(record, tail_seconds=0.01 + tail * (number > 4))
        seconds = 0.03 + 0.5 * (number > 4)
        step = StepRecord(
            step=number, loss=1.0, learning_rate=0.1, array_seconds=seconds, devices=parts, placement=seen
        )
        due.append(training._is_due([step]))
    assert any(due) == changed


def test_only_a_cut_that_was_left_to_a_policy_is_looked_at_again() -> None:
    def first(request: RunRequest) -> CutInForce | None:
        return reviewed_training.first_cut(request, None)

    auto = request_of(SCENARIO, **KEYS)
    assert first(auto) == CutInForce("2", 1.0, "auto")
    assert first(request_of(SCENARIO, **{**KEYS, "placement": "2"})) is None
    assert first(request_of(SCENARIO, **{**KEYS, "placement": "none"})) is None
    overlapping = replace(auto, communication=replace(auto.communication, overlap=True))
    assert first(overlapping) is None
