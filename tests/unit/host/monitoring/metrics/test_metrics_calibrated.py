"""What the calibration tables say beside what drives do: the same work at the same batch sizes, undisturbed."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles import PROFILES
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.device_time import DeviceTime, TableModel, batch_counts, gradient_seconds, micro_batch_counts
from host.core.records import DeviceRound, EventKind, EventRecord
from host.monitoring.metrics.calibrated import Calibrated
from tests.support.calibration import make_table
from tests.support.metrics import DEVICES, TABLE, begun, devices_of, exposed, scraped
from tests.support.records import device_round, round_record
from tests.support.sync_records import SyncRun

NAME = "csd_calibrated_records_per_second"


def trained(device: str, samples: int, batch_size: int, epochs: int, weight: int = 0, **fields: Any) -> DeviceRound:
    """A drive's part in a federated round of the modelled clock, while a task of `weight` competes with it."""
    time = DeviceTime({device: PROFILES["newport"]}, {device: TABLE})
    time.set_competitor(device, weight)
    seconds = time.seconds(device, "wall", PhaseSeconds(), batch_counts(samples, epochs, batch_size))
    return device_round(device, samples, seconds, clock="modelled", batch_size=batch_size, **fields)


@given(per_epoch=st.integers(2, 10**4), batch_size=st.integers(2, 256), epochs=st.integers(1, 5))
def test_a_drive_that_does_as_its_table_says_does_exactly_that(per_epoch: int, batch_size: int, epochs: int) -> None:
    part = trained("csd-00", per_epoch * epochs, batch_size, epochs)
    rates = Calibrated({"csd-00": TABLE}, epochs).records_per_second(round_record([part]))
    if per_epoch % batch_size == 1:  # the table has no row of the kernels that one record takes
        assert rates == {}
    else:
        assert rates == {("csd-00", "modelled"): pytest.approx(part.samples / part.device_seconds.total)}


@given(weight=st.integers(1, 10_000))
def test_competing_work_is_not_in_it(weight: int) -> None:
    part = trained("csd-00", 640, 64, 1, weight)
    (rate,) = Calibrated({"csd-00": TABLE}).records_per_second(round_record([part])).values()
    assert part.samples / part.device_seconds.total == pytest.approx(rate * 100 / (100 + weight))


def test_who_has_no_table_or_was_late_or_had_nothing_to_do_has_no_figure() -> None:
    parts = [trained("csd-00", 0, 64, 1), trained("csd-01", 640, 64, 1), trained("csd-02", 640, 64, 1, straggler=True)]
    models = {"csd-00": TABLE, "csd-02": TABLE}
    assert Calibrated(models).records_per_second(round_record(parts)) == {}
    assert Calibrated().records_per_second(round_record(parts)) == {}


def test_synchronous_rounds_are_held_against_what_their_steps_should_have_taken() -> None:
    (record,) = SyncRun(steps=100, round_steps=100).make()
    models = dict.fromkeys([*SyncRun().names, "host"], TABLE)
    rates = Calibrated(models).records_per_second(record)
    assert rates.keys() == {(name, "counted") for name in SyncRun().names} | {("host", "modelled")}
    own = [part for step in record.steps for part in step.devices if part.device == "csd-01"]
    expected = math.fsum(part.expected_seconds for part in own)
    assert rates["csd-01", "counted"] == pytest.approx(sum(part.batch_size for part in own) / expected)


def test_a_step_without_a_table_behind_its_batch_has_no_figure() -> None:
    (record,) = SyncRun(steps=4, round_steps=4).make()
    narrow = TableModel(make_table({16: 0.2, 64: 0.7}), PROFILES["newport"])
    models = dict.fromkeys(SyncRun().names, narrow)
    assert len(Calibrated(models).records_per_second(record)) == 4
    # In parts of 8 records other kernels run than in the table.
    micro_batches = dict.fromkeys(SyncRun().names, 8)
    assert Calibrated(models, 1, micro_batches).records_per_second(record) == {}
    steps = [
        msgspec.structs.replace(
            step, devices=[msgspec.structs.replace(part, expected_seconds=0.0) for part in step.devices]
        )
        for step in record.steps
    ]
    assert Calibrated(models).records_per_second(msgspec.structs.replace(record, steps=steps)) == {}


def test_a_gradient_in_parts_costs_what_its_parts_do() -> None:
    seconds = gradient_seconds(TABLE, micro_batch_counts(24, 8))
    assert seconds.forward == pytest.approx(3 * TABLE.step_seconds(8).forward)
    assert seconds.update == 0


def test_the_metric_is_of_the_last_round_and_of_nobody_else() -> None:
    state = begun(calibrated=Calibrated(dict.fromkeys(DEVICES, TABLE)))
    assert NAME not in scraped(state)
    state.add_round(round_record([trained(name, 640, 64, 1) for name in DEVICES]))
    assert devices_of(exposed(state))[NAME] == set(DEVICES)
    state.add_event(EventRecord("csd-01", EventKind.LEFT))
    state.add_round(round_record([trained("csd-00", 640, 32, 1)], round=2))
    assert scraped(state)[NAME] == {("modelled", "csd-00"): pytest.approx(_rate(32))}


def _rate(batch: int) -> float:
    steps = 640 // batch
    return 640 / (steps * TABLE.step_seconds(batch).total + TABLE.encode_seconds)


def test_a_power_cap_is_shown_with_the_clock_of_the_array_and_only_if_there_is_one() -> None:
    assert "csd_power_cap_watts" not in scraped(begun())
    assert scraped(begun(power_cap_watts=250.0))["csd_power_cap_watts"] == {("counted",): 250.0}


def test_late_rounds_are_counted_per_device() -> None:
    state = begun()
    parts = [trained("csd-00", 64, 64, 1, straggler=True), trained("csd-01", 64, 64, 1)]
    state.add_round(round_record(parts))
    state.add_round(round_record(parts, round=2))
    assert scraped(state)["csd_late_rounds_total"] == {("csd-00",): 2, ("csd-01",): 0, ("csd-02",): 0}


def test_scrapers_are_shown_the_end_of_the_run() -> None:
    """What alerts tell a regular end by."""
    state = begun()
    before = state.revision
    state.end()
    assert state.revision > before
    assert set(scraped(state)["csd_device_state"][name, "training"] for name in DEVICES) == {0}
