"""Records of synchronous rounds: they come back as they were, and add up to the run's summary."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import DeviceStep, RetuneRecord, StepRecord, decode_record
from host.core.summary import FEDERATED, SYNC, Summary, summarise
from tests.support.records import array_rounds, device_round, round_record
from tests.support.sync_records import SyncRun

FACTS: dict[str, Any] = {
    "array": "lab",
    "engine": "qemu",
    "model": "m",
    "target_accuracy": None,
    "reached": True,
    "wall_seconds": 1.0,
    "run_directory": "r",
    "seed": 0,
}
seconds = st.floats(0, 1e6)
names = st.sampled_from(["csd-00", "csd-01", HOST])
device_steps = st.builds(
    DeviceStep, device=names, batch_size=st.integers(0, 4096), compute_seconds=seconds, expected_seconds=seconds
)
batches = st.dictionaries(names, st.integers(0, 4096))
steps = st.builds(
    StepRecord,
    step=st.integers(1, 10**7),
    loss=seconds,
    learning_rate=st.floats(1e-9, 100),
    array_seconds=seconds,
    possible_records_per_second=seconds,
    devices=st.lists(device_steps, max_size=4),
    late=st.lists(names),
    lost=st.lists(names),
    mixed=st.booleans(),
    disturbed=st.dictionaries(names, st.integers(1, 10_000)),
)
retunes = st.builds(
    RetuneRecord, step=st.integers(1, 10**7), reason=st.text(), before=batches, after=batches, gain_steps=seconds
)


@given(st.lists(steps, max_size=4), st.lists(retunes, max_size=2))
def test_a_synchronous_round_comes_back_as_it_was(done: list[StepRecord], changes: list[RetuneRecord]) -> None:
    record = round_record([], steps=done, retunes=changes)
    assert decode_record(msgspec.json.encode(record)) == record


def test_a_loss_that_was_no_number_comes_back_as_nan_and_the_rest_as_it_was() -> None:
    record = SyncRun(steps=4, spoiled={3: {"loss": math.inf}}).make()[0]
    back = decode_record(msgspec.json.encode(record))
    assert not isinstance(back, type(None))
    assert math.isnan(back.steps[2].loss)  # type: ignore[union-attr]
    assert [each.devices for each in back.steps] == [each.devices for each in record.steps]  # type: ignore[union-attr]
    assert back.machine_joules is None  # type: ignore[union-attr]


@given(steps)
def test_imbalance_is_a_share_and_zero_if_all_are_equal(step: StepRecord) -> None:
    assert 0 <= step.imbalance <= 1
    level = [msgspec.structs.replace(part, compute_seconds=2.5) for part in step.devices]
    assert msgspec.structs.replace(step, devices=level).imbalance == 0
    parked = DeviceStep(device="csd-09", batch_size=0, compute_seconds=0.0)
    assert msgspec.structs.replace(step, devices=[*step.devices, parked]).imbalance == step.imbalance


def test_imbalance_and_slowdown_of_known_seconds() -> None:
    parts = [
        DeviceStep(device="csd-00", batch_size=8, compute_seconds=4.0, expected_seconds=2.0),
        DeviceStep(device="csd-01", batch_size=8, compute_seconds=3.0),
    ]
    step = StepRecord(step=1, loss=1.0, learning_rate=0.1, array_seconds=5.0, devices=parts)
    assert step.imbalance == pytest.approx(0.25)
    assert step.slowest_seconds == 4.0
    assert [part.slowdown for part in parts] == [2.0, None]


def test_the_summary_of_a_synchronous_run() -> None:
    rounds = SyncRun().make()
    summary = summarise(rounds, **FACTS)
    assert (summary.mode, summary.steps, summary.retunes) == (SYNC, 200, 4)
    assert summary.samples == sum(step.samples for record in rounds for step in record.steps)
    assert summary.records_per_array_second * summary.array_seconds == pytest.approx(summary.samples)
    assert summary.joules_per_record * summary.samples == pytest.approx(summary.energy_joules)
    assert summary.host_link_bytes_per_record * summary.samples == pytest.approx(summary.host_link_bytes)


def test_the_summary_of_a_federated_run_has_the_same_rates() -> None:
    rounds = array_rounds(3, ["csd-00", "csd-01"])
    summary = summarise(rounds, **FACTS)
    assert (summary.mode, summary.steps, summary.retunes) == (FEDERATED, 12, 0)
    assert summary.records_per_array_second * summary.array_seconds == pytest.approx(summary.samples)
    assert summary.host_link_bytes_per_record * summary.samples == pytest.approx(summary.host_link_bytes)


def test_without_records_trained_on_rates_are_zero() -> None:
    nothing = round_record([device_round("csd-00", 0, PhaseSeconds())])
    summary = summarise([nothing], **FACTS)
    rates = summary.records_per_array_second, summary.joules_per_record, summary.host_link_bytes_per_record
    assert rates == (0, 0, 0)


def test_a_summary_of_an_earlier_version_can_still_be_read() -> None:
    known = msgspec.structs.asdict(summarise(array_rounds(1, ["csd-00"]), **FACTS))
    added = ("mode", "steps", "retunes", "records_per_array_second", "joules_per_record", "host_link_bytes_per_record")
    old = {key: value for key, value in known.items() if key not in added}
    assert msgspec.convert(old, Summary).mode == FEDERATED
