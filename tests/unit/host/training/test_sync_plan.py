"""What a synchronous job will do on an array, before anything starts."""

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from firmware_agent.common.errors import CheckpointError, ConfigurationError
from firmware_agent.common.frames.frame_fields import MAX_STEP_RECORDS
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig
from host.core.states.training_state import check_in_place
from host.core.tuning.batch_tuner import BatchTuner
from host.policies.batching.device_speeds import speed_tables
from host.policies.batching.fixed import FixedBatches
from host.policies.batching.hypertune import HyperTune
from host.policies.batching.make import make_rules
from host.training.first_batches import StepOverhead
from host.training.sync_plan import Records, SyncPlan, make_plan
from tests.support.examples import examples
from tests.support.sync import SHAPE, STORE

NODES = ("csd-00", "csd-01", "host")
THOUSAND = Records((0, 0, 0), 1_000, 72)


def plan_of(records: Records = THOUSAND, wall: bool = False, trains: bool = True, **job: Any) -> SyncPlan:
    array = {
        "name": "lab",
        "host": {"trains": trains},
        "devices": [{"profile": "newport"}, {"profile": "generic-a53"}],
    }
    fields = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "rounds": 2, "batch_size": 10} | job
    return make_plan(
        *(ArrayConfig.model_validate(array), JobConfig.model_validate(fields), ShippedCode("digits_cnn"), SHAPE),
        *(None if wall else STORE, records),
    )


def test_without_a_tuner_all_have_the_jobs_batch_and_stay_with_it() -> None:
    plan = plan_of()
    assert (plan.nodes, plan.batches) == (NODES, (10, 10, 10))
    assert isinstance(plan.make_tuner(), FixedBatches)


@pytest.mark.parametrize(("name", "kind"), [("stannis", FixedBatches), ("hypertune", HyperTune)])
def test_a_tuner_begins_with_batches_that_end_together(name: str, kind: type) -> None:
    plan = plan_of(tuner=name, sync={"tuning": {"slow_batch": 24}})
    tuner = plan.make_tuner()
    assert isinstance(tuner, kind)
    assert tuner.batches.tolist() == list(plan.batches)
    newport, slow, host = plan.batches
    assert slow == 24 < newport < host
    seconds = [plan.classes[node].speed.seconds(batch) for node, batch in zip(NODES[:2], plan.batches[:2], strict=True)]
    assert max(seconds) / min(seconds) < 1.05


@settings(max_examples=examples(60))
@given(
    private=st.tuples(st.integers(0, 60), st.integers(0, 60), st.just(0)),
    public=st.integers(1, 200),
    batch=st.integers(1, 40),
    epochs=st.integers(1, 3),
    overflow=st.sampled_from(["repeat", "subsample"]),
)
def test_the_steps_of_the_plan_are_those_that_the_queue_deals(
    private: tuple[int, int, int], public: int, batch: int, epochs: int, overflow: str
) -> None:
    fields = {"rounds": 2, "epochs": epochs, "sync": {"overflow": overflow}}
    job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync"} | fields)
    plan = SyncPlan(job, NODES, private, public, {}, {}, (batch,) * len(NODES))
    queue, steps = plan.make_queue(None), 0
    while True:
        queue.next_step(plan.batches)
        if queue.state.epoch > 2 * epochs:  # of two rounds
            break
        steps += 1
    assert plan.steps == steps


def epoch_seconds(plan: SyncPlan, tuner: BatchTuner, slowed: int, slowdown: float, epochs: int = 2) -> float:
    """Return the mean seconds of epochs in which a node takes so many times its table's, without those of the first."""
    tables, queue, step, seconds = list(speed_tables(plan.classes).values()), plan.make_queue(None), 0, 0.0
    factors = np.where(np.arange(len(plan.nodes)) == slowed, slowdown, 1.0)
    while True:
        batches = tuner.batches
        queue.next_step(batches)
        if queue.state.epoch > epochs:
            return seconds / (epochs - 1)
        step += 1
        asked = np.maximum(batches, tuner.probes(step))
        took = np.array([table.seconds(int(batch)) for table, batch in zip(tables, asked, strict=True)]) * factors
        seconds += (queue.state.epoch > 1) * (took[batches > 0].max() + plan.overhead.step_seconds)
        tuner.observe(step, np.where(took > 0, took, np.nan))


@pytest.mark.parametrize(("private", "public"), [((0, 0), 6_000), ((2_400, 2_400), 1_200), ((0, 0), 40)])
def test_epochs_get_no_longer_by_records_that_are_taken_over(private: tuple[int, int], public: int) -> None:
    """With private records the slowed drive's own bound the epoch: others would have public ones again."""
    plan = plan_of(Records(private, public, 72), trains=False, tuner="hypertune", sync={"tuning": {"slow_batch": 24}})
    plan = replace(plan, overhead=StepOverhead(max(plan.classes[node].speed.seconds(24) for node in NODES[:2])))
    tables = list(speed_tables(plan.classes).values())
    rules = make_rules(plan.job.sync.tuning)
    capped = HyperTune(tables, np.array(plan.batches), rules, plan.steps, plan.overhead.step_seconds)
    shared = epoch_seconds(plan, plan.make_tuner(), 1, 6.0)
    alone = epoch_seconds(plan, capped, 1, 6.0)
    assert shared <= alone * (1 + 1e-9)
    assert (shared < 0.99 * alone) == (not any(private) and public > 40)


def test_a_round_of_so_many_steps_needs_no_counting() -> None:
    assert plan_of(rounds=3, sync={"round_steps": 7}).steps == 21


def test_parts_are_as_large_as_was_asked_for_and_as_memory_holds() -> None:
    assert plan_of(wall=True).micro_batch("csd-00") == MAX_STEP_RECORDS
    tuned = {"tuner": "stannis", "sync": {"tuning": {"slow_batch": 8}}}
    free = plan_of(**tuned)
    assert free.micro_batch("csd-00") == min(MAX_STEP_RECORDS, free.classes["csd-00"].micro_batch)
    tuned["sync"]["micro_batch"] = 5  # type: ignore[index]
    bounded = plan_of(**tuned)
    assert {bounded.micro_batch(node) for node in NODES} == {5}
    said = [note for note in bounded.notes if "at a time (memory)" in note]
    assert [note.split(":")[0] for note in said] == [n for n, b in zip(NODES, bounded.batches, strict=True) if b > 5]


@pytest.mark.slow
def test_more_private_records_than_equal_steps_hold_are_said() -> None:
    crowded = Records((900, 0, 0), 30, 72)
    (said,) = plan_of(crowded).notes
    (other,) = plan_of(crowded, sync={"overflow": "subsample"}).notes
    assert said != other
    assert plan_of(Records((10, 10, 0), 1_000, 72)).notes == []


def test_each_holds_its_own_records_and_all_public_ones() -> None:
    records = Records((7, 5, 0), 30, 72)
    assert plan_of(records).sizes == (37, 35, 30)
    assert records.shard_bytes == 37 * 72


@pytest.mark.parametrize(
    ("job", "wall", "message"),
    [
        ({"disturb": [{"device": "csd-07", "at_step": 1, "weight": 1, "steps": 1}]}, False, "'csd-07' is not in"),
        ({"disturb": [{"device": "csd-00", "at_step": 1, "weight": 1, "steps": 1}]}, True, "competing work has no"),
        ({"tuner": "stannis"}, True, "needs to know how fast the drives are"),
        ({"tuner": "stannis", "sync": {"tuning": {"slow_batch": 60_000}}}, False, "60000"),
    ],
)
def test_what_does_not_fit_together_is_refused(job: dict[str, Any], wall: bool, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan_of(wall=wall, **job)


def test_the_host_can_be_disturbed_only_where_it_trains() -> None:
    disturb = [{"device": "host", "at_step": 1, "weight": 1, "steps": 1}]
    plan_of(disturb=disturb)
    with pytest.raises(ConfigurationError, match="'host' is not in the array"):
        plan_of(Records((0, 0), 1_000, 72), trains=False, disturb=disturb)


def test_a_queue_goes_on_from_where_another_stood() -> None:
    plan = plan_of(Records((5, 3, 0), 40, 72))
    queue = plan.make_queue(None)
    queue.next_step(plan.batches)
    other = plan.make_queue(queue.state)
    for one, two in zip(queue.next_step(plan.batches).records, other.next_step(plan.batches).records, strict=True):
        assert np.array_equal(one, two)


@pytest.mark.parametrize(
    ("now", "before", "other"),
    [("a", "a", False), ("a", "b", True), ("a", "", False), ("a", None, False), ("", "a", False), ("", "", False)],
)
def test_a_resumed_run_needs_the_records_in_place_that_it_knew(now: str, before: str | None, other: bool) -> None:
    progress = {} if before is None else {"in_place": {"csd-00": before}}
    with pytest.raises(CheckpointError, match="csd-00: other records") if other else contextlib.nullcontext():
        check_in_place({"csd-00": now}, progress)
