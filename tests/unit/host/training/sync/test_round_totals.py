"""Steps add up to a round, whoever took part in which of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.power import COMPONENTS, sum_energy
from csd_emu.perfmodel.timeline import Span
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import DeviceRound, DeviceStep, StepRecord
from host.training.accounting import StepAccount
from host.training.sync.round_totals import RoundTotals

ORDER = ["csd-00", "csd-01", "csd-02", "host"]
seconds = st.floats(0, 100)


@st.composite
def parts(draw: st.DrawFn, device: str) -> DeviceRound:
    """One device's part in a step."""
    phases = PhaseSeconds(*(draw(seconds) for _ in range(2)), 0.0, draw(seconds))  # type: ignore[call-arg]
    return DeviceRound(
        device=device,
        clock="counted",
        samples=draw(st.integers(1, 100)),
        steps=1,
        batch_size=1,
        loss=draw(st.floats(-10, 10)),
        stopwatch_seconds=phases,
        device_seconds=phases,
        read_seconds=draw(seconds),
        receive_seconds=draw(seconds),
        send_seconds=draw(seconds),
        flash_read_bytes=draw(st.integers(0, 10**6)),
        sent_bytes=draw(st.integers(0, 10**6)),
        received_bytes=draw(st.integers(0, 10**6)),
        peak_memory_bytes=draw(st.integers(0, 10**9)),
        energy_joules={name: draw(seconds) for name in COMPONENTS},
        straggler=draw(st.booleans()),
    )


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[StepRecord, StepAccount]]:
    """Steps in which some take part, some are lost, the others idle."""
    found = []
    for number in range(1, draw(st.integers(1, 5)) + 1):
        there = sorted(draw(st.sets(st.sampled_from(ORDER), min_size=1)), key=ORDER.index)
        lost = [device for device in ORDER if device not in there and draw(st.booleans())]
        took = [draw(parts(device)) for device in there]
        long = draw(seconds)
        spans = [Span(device, "forward", number, number + 1) for device in there]
        idle = {node: {"idle": draw(seconds)} for node in ORDER if node not in there or node == "host"}
        counted = [DeviceStep(device=p.device, batch_size=p.samples, compute_seconds=1.0) for p in took]
        record = StepRecord(step=number, loss=0.5, learning_rate=0.1, array_seconds=long, devices=counted, lost=lost)
        found.append((record, StepAccount(took, long, {}, spans, idle)))
    return found


def total(joules: dict[str, float]) -> float:
    return math.fsum(joules.values())


@given(taken=steps())
def test_a_round_is_the_sum_of_its_steps(taken: list[tuple[StepRecord, StepAccount]]) -> None:
    ledger = RoundTotals(7.0)
    for record, accounted in taken:
        ledger.add(record, accounted)
    fields = ledger.fields(ORDER)
    everything = [part for _, accounted in taken for part in accounted.devices]
    assert fields["start_seconds"] == 7.0
    assert fields["array_seconds"] == pytest.approx(math.fsum(record.array_seconds for record, _ in taken))
    assert fields["steps"] == [record for record, _ in taken]
    assert fields["spans"] == [span for _, accounted in taken for span in accounted.spans]
    assert [part.device for part in fields["devices"]] == [d for d in ORDER if d in {p.device for p in everything}]
    for merged in fields["devices"]:
        own = [part for part in everything if part.device == merged.device]
        counted = [part for part in own if not part.straggler]
        assert (merged.samples, merged.steps) == (sum(part.samples for part in counted), len(counted))
        assert merged.straggler == (counted == [])
        mean = sum(p.loss * p.samples for p in counted) / merged.samples if counted else 0.0
        assert merged.loss == pytest.approx(mean)
        # What came too late was computed, read and sent all the same.
        for name in ("flash_read_bytes", "sent_bytes", "received_bytes"):
            assert getattr(merged, name) == sum(getattr(part, name) for part in own)
        for name in ("read_seconds", "receive_seconds", "send_seconds"):
            assert getattr(merged, name) == pytest.approx(math.fsum(getattr(part, name) for part in own))
        assert merged.device_seconds.total == pytest.approx(
            math.fsum(part.device_seconds.total for part in counted or own)
        )
        assert merged.peak_memory_bytes == max(part.peak_memory_bytes for part in own)


@given(taken=steps())
def test_no_joule_is_lost_between_steps_and_round(taken: list[tuple[StepRecord, StepAccount]]) -> None:
    ledger = RoundTotals(0.0)
    for record, accounted in taken:
        ledger.add(record, accounted)
    fields = ledger.fields(ORDER)
    want = math.fsum(
        joules
        for _, accounted in taken
        for parts in [*(part.energy_joules for part in accounted.devices), *accounted.energy_joules.values()]
        for joules in parts.values()
    )
    got = sum_energy([*(part.energy_joules for part in fields["devices"]), *fields["energy_joules"].values()])
    assert total(got) == pytest.approx(want)


@given(taken=steps())
def test_each_node_took_part_or_was_lost_or_idle(taken: list[tuple[StepRecord, StepAccount]]) -> None:
    ledger = RoundTotals(0.0)
    for record, accounted in taken:
        ledger.add(record, accounted)
    fields = ledger.fields(ORDER)
    there = [part.device for part in fields["devices"]]
    assert sorted([*there, *fields["lost"], *fields["idle"]]) == sorted(ORDER)
    assert all(any(device in record.lost for record, _ in taken) for device in fields["lost"])


def test_a_round_without_a_step_is_empty() -> None:
    fields = RoundTotals(3.0).fields(ORDER)
    assert (fields["devices"], fields["steps"], fields["array_seconds"]) == ([], [], 0)
    assert fields["idle"] == ORDER
