"""What a gate measures: medians over rounds, which one disturbance does not move and a slowdown of all rounds does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.app.gate.run_gate import ENOUGH_ROUNDS, list_doubts, list_failures, list_losses, measure
from host.core.records import EventKind, EventRecord, RoundRecord
from tests.support.records import device_round, round_record

COUNTS = st.integers(ENOUGH_ROUNDS, 9)


def rounds_of(rates: list[float]) -> list[RoundRecord]:
    """Rounds of 100 records at these rates, each at 10 W."""
    made = []
    for number, rate in enumerate(rates, start=1):
        part = device_round("csd-00", 100, PhaseSeconds(forward=100 / rate))
        joules = {"csd-00": {"idle": 10 * 100 / rate}}
        fields = {"records_per_device_second": rate, "energy_joules": joules}
        made.append(round_record([part], round=number, **fields))
    return made


@given(COUNTS, st.data(), st.floats(0.01, 0.95), st.booleans())
def test_one_disturbed_round_moves_nothing(count: int, data: st.DataObject, factor: float, slower: bool) -> None:
    usual = [1000.0] * count
    disturbed = list(usual)
    disturbed[data.draw(st.integers(0, count - 1))] *= factor if slower else 1 / factor
    assert measure(rounds_of(disturbed)) == measure(rounds_of(usual))


@given(COUNTS, st.floats(1.001, 2))
def test_a_slowdown_of_every_round_shows_in_full(count: int, factor: float) -> None:
    rates = [1000.0 + number for number in range(count)]
    before, after = measure(rounds_of(rates)), measure(rounds_of([rate / factor for rate in rates]))
    assert before["records_per_device_second"] / after["records_per_device_second"] == pytest.approx(factor)
    assert after["joules_per_record"] / before["joules_per_record"] == pytest.approx(factor)


def test_a_run_without_images_has_no_rates() -> None:
    record = round_record([], records_per_device_second=0.0, accuracy=0.3)
    assert measure([record]) == {"accuracy": 0.3, "records_per_device_second": 0.0, "joules_per_record": 0.0}


def test_a_run_without_rounds_has_no_figures_and_fails() -> None:
    assert set(measure([]).values()) == {0.0}
    assert list_failures([], []) == ["the run has no round"]


def test_rounds_that_trained_on_nothing_and_lost_drives_are_failures() -> None:
    good = rounds_of([1.0] * 2)
    late = round_record([device_round("csd-00", 100, PhaseSeconds(forward=1.0), straggler=True)], round=3)
    assert list_failures(good, []) == []
    loss, idle = list_failures([*good, late], ["csd-01 was lost: it died"])
    assert loss.startswith("csd-01 was lost: it died; ")
    assert idle == "1 of 3 rounds trained on nothing in time: 3"


def test_few_rounds_are_a_doubt() -> None:
    assert list_doubts(rounds_of([1.0] * ENOUGH_ROUNDS)) == []
    (doubt,) = list_doubts(rounds_of([1.0] * (ENOUGH_ROUNDS - 1)))
    assert doubt.startswith("4 rounds")


def test_lost_drives_are_named() -> None:
    events = [EventRecord("csd-00", EventKind.JOINED), EventRecord("csd-01", EventKind.LOST, "it died")]
    assert list_losses(events) == ["csd-01 was lost: it died"]
