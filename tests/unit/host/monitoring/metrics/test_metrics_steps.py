"""Metrics of synchronous runs: steps as they were, gauges of the last one, series of devices that come and go."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.core.records import EventKind, EventRecord, RoundRecord, SendingRecord
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.metrics.step_counting import share_phase
from host.monitoring.run_facts import RunFacts
from host.monitoring.run_listener import show_round
from tests.support.metrics import scraped, starting
from tests.support.sync_records import SyncRun

NAMES = tuple(f"csd-{number:02d}" for number in range(4))
CLOCK = "counted+modelled"


def begun() -> MetricsState:
    state = MetricsState(RunFacts("lab", "qemu", "digits_cnn", "sync", NAMES))
    for name in NAMES:
        state.add_event(EventRecord(name, EventKind.JOINED))
    state.begin(starting(NAMES, CLOCK))
    return state


def played(rounds: list[RoundRecord]) -> MetricsState:
    state = begun()
    for record in rounds:
        show_round([state], record)
    return state


def test_counters_are_there_before_the_first_round() -> None:
    metrics = scraped(begun())
    assert metrics["csd_step"] == {("sync",): 0}
    assert metrics["csd_mixed_steps_total"] == {(): 0}
    assert metrics["csd_step_duration_seconds_count"] == {(CLOCK, "sync"): 0}
    for name in ("csd_retunes_total", "csd_late_steps_total", "csd_disturbance_weight"):
        assert metrics[name] == {(device,): 0 for device in NAMES}
    assert "csd_device_slowdown_ratio" not in metrics


def test_steps_count_one_by_one() -> None:
    rounds = SyncRun().make()
    steps = [step for record in rounds for step in record.steps]
    metrics = scraped(played(rounds))
    assert metrics["csd_step"] == {("sync",): 200}
    assert metrics["csd_step_duration_seconds_count"] == {(CLOCK, "sync"): 200}
    total = math.fsum(step.array_seconds for step in steps)
    assert metrics["csd_step_duration_seconds_sum"][CLOCK, "sync"] == pytest.approx(total)
    slow = sum(step.array_seconds > 1.0 for step in steps)
    assert slow == 4  # those in which a drive took four times as long
    assert 200 - metrics["csd_step_duration_seconds_bucket"][CLOCK, "1.0", "sync"] == slow


def test_the_durations_of_a_drives_steps_are_those_of_steps_and_not_of_rounds() -> None:
    rounds = SyncRun().make()
    metrics = scraped(played(rounds))
    own = [part for record in rounds for part in record.devices if part.device == "csd-03"]
    backward = math.fsum(part.device_seconds.backward for part in own)
    assert metrics["csd_train_step_duration_seconds_sum"]["counted", "csd-03", "backward"] == pytest.approx(backward)
    assert metrics["csd_train_step_duration_seconds_count"]["counted", "csd-03", "backward"] == 200
    # Two thirds of 1.36 s in four steps; the mean of that round is below 0.3 s.
    below = metrics["csd_train_step_duration_seconds_bucket"]["counted", "csd-03", "0.3", "backward"]
    assert below == 196


def test_gauges_are_of_the_last_step() -> None:
    rounds = SyncRun(steps=110).make()
    last = rounds[-1].steps[-1]
    metrics = scraped(played(rounds))
    assert metrics["csd_global_batch_size"] == {(): last.samples}
    assert metrics["csd_learning_rate"] == {(): pytest.approx(last.learning_rate)}
    assert metrics["csd_step_imbalance_ratio"] == {(CLOCK,): pytest.approx(last.imbalance)}
    assert metrics["csd_possible_records_per_second"] == {(CLOCK,): pytest.approx(last.possible_records_per_second)}
    assert metrics["csd_batch_size"] == {(part.device,): part.batch_size for part in last.devices}
    assert metrics["csd_disturbance_weight"] == {(name,): 100 * (name == "csd-01") for name in (*NAMES, "host")}
    assert metrics["csd_device_slowdown_ratio"]["counted", "csd-01"] == pytest.approx(2.0, rel=0.01)
    assert metrics["csd_device_slowdown_ratio"]["modelled", "host"] == pytest.approx(1.0, rel=0.01)


def test_retunes_late_and_mixed_steps_are_counted_per_device() -> None:
    spoiled: dict[int, dict[str, Any]] = {7: {"late": ["csd-02"]}, 8: {"late": ["csd-02", "csd-09"], "mixed": True}}
    metrics = scraped(played(SyncRun(spoiled=spoiled).make()))
    retuned = {(name,): 2 if name in ("csd-01", "csd-03") else 0 for name in (*NAMES, "host")}
    assert {key: value for key, value in metrics["csd_retunes_total"].items() if key != ("csd-09",)} == retuned
    assert metrics["csd_late_steps_total"]["csd-02",] == 2
    assert metrics["csd_late_steps_total"]["csd-09",] == 1
    assert metrics["csd_late_steps_total"]["csd-00",] == 0
    assert metrics["csd_mixed_steps_total"] == {(): 1}


def test_what_a_later_step_does_not_know_is_not_kept_from_an_earlier_one() -> None:
    first, second = SyncRun(steps=4, round_steps=2).make()
    parts = [msgspec.structs.replace(part, expected_seconds=0.0) for part in second.steps[-1].devices]
    last = msgspec.structs.replace(second.steps[-1], devices=parts, possible_records_per_second=0.0)
    first = msgspec.structs.replace(first, gradient_noise_records=42.5)
    assert scraped(played([first]))["csd_gradient_noise_records"] == {(): 42.5}
    metrics = scraped(played([first, msgspec.structs.replace(second, steps=[second.steps[0], last])]))
    assert "csd_gradient_noise_records" not in metrics
    assert "csd_device_slowdown_ratio" not in metrics
    assert "csd_possible_records_per_second" not in metrics


def test_the_energy_of_a_training_host_is_that_of_its_training_and_of_the_rest() -> None:
    rounds = SyncRun(steps=20, round_steps=10).make()
    metrics = scraped(played(rounds))
    total = math.fsum(metrics["csd_energy_joules_total"].values())
    assert total == pytest.approx(math.fsum(record.total_joules for record in rounds))


def test_series_of_a_drive_that_is_gone_vanish() -> None:
    state = begun()
    rounds = SyncRun(steps=30, round_steps=10).make()
    show_round([state], rounds[0])
    state.add_event(EventRecord("csd-03", EventKind.LOST))
    state.add_event(EventRecord("csd-03", EventKind.LEFT))
    for record in rounds[1:]:
        show_round([state], record)
    metrics = scraped(state)
    for name in ("csd_retunes_total", "csd_late_steps_total", "csd_disturbance_weight", "csd_device_slowdown_ratio"):
        assert not any("csd-03" in labels for labels in metrics[name]), name
        assert any("csd-02" in labels for labels in metrics[name]), name


@given(st.floats(0, 1e6), st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_a_phase_shared_out_among_steps_adds_up(seconds: float, own: list[float]) -> None:
    shared = share_phase(seconds, len(own), own)
    assert math.fsum(value * times for value, times in shared) == pytest.approx(seconds)
    assert sum(times for _, times in shared) == len(own)


def test_slices_and_credit_are_the_last_steps_and_changes_are_counted() -> None:
    rounds = SyncRun().make()
    large, small = SendingRecord("priority", 1 << 20, 4 << 20), SendingRecord("priority", 1 << 16, 1 << 18, True)

    def sent(record: RoundRecord, each: list[SendingRecord | None]) -> RoundRecord:
        steps = [msgspec.structs.replace(step, sending=each[n % len(each)]) for n, step in enumerate(record.steps)]
        return msgspec.structs.replace(record, steps=tuple(steps))

    state = begun()
    assert scraped(state)["csd_comm_tuner_changes_total"] == {(): 0}
    show_round([state], sent(rounds[0], [large]))
    metrics = scraped(state)
    assert metrics["csd_comm_tuner_changes_total"] == {(): 0}
    assert metrics["csd_comm_partition_bytes"] == {(): 1 << 20}
    assert metrics["csd_comm_credit_bytes"] == {(): 4 << 20}
    show_round([state], sent(rounds[1], [large, small]))
    assert scraped(state)["csd_comm_tuner_changes_total"] == {(): len(rounds[1].steps) - 1}
    show_round([state], sent(rounds[2], [None]))
    assert "csd_comm_partition_bytes" not in scraped(state)
