"""Batches that a job begins with, and what a step takes beside computing: of whole models, and of ones that are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles.profile import RATIO_DRIVE
from firmware_agent.common.shipped_code import ShippedCode
from host.config.sync_section import SyncSection, TuningSection
from host.core.model_facts import exchange_seconds, inspect_load
from host.policies.batching.client_layers import Front
from host.policies.batching.device_speeds import device_classes, speed_tables
from host.policies.batching.stannis import plan_batches
from host.training import host_room
from host.training.first_batches import OverheadAt, StepOverhead, first_batches, most_step_records, step_overhead
from tests.support.sync import SHAPE, STORE

SPEC = ShippedCode("digits_cnn")
LOAD, TABLE = inspect_load(SPEC, SHAPE), STORE.require(SPEC, SHAPE, RATIO_DRIVE)
shares = st.floats(0.05, 0.95)
fronts = st.builds(Front, shares, shares, shares, st.integers(0, 10**6), st.integers(1, 10**5), st.integers(1, 10**5))


def array_of(slow: int = 1, bandwidth: str = "100 MB/s", shared: bool = True) -> ArrayConfig:
    devices = [{"profile": "newport", "count": 2}, {"profile": "generic-a53", "name": "slow", "count": slow}]
    link = {"bandwidth": bandwidth, "shared": shared}
    return ArrayConfig.model_validate({"name": "lab", "devices": devices, "link": link})


def test_with_nothing_moved_it_is_the_exchange_and_stannis_batches() -> None:
    config = array_of()
    overhead_at = step_overhead(config, LOAD)
    assert overhead_at(1) == overhead_at(1000) == StepOverhead(exchange_seconds(config, LOAD))
    classes = device_classes(config, STORE.of(SPEC, SHAPE), SyncSection())
    planned = plan_batches(list(speed_tables(classes).values()), TuningSection(), overhead_at(1).step_seconds)
    assert first_batches(config, classes, TuningSection(), overhead_at).tolist() == planned.batches.tolist()


@given(fronts, st.integers(1, 500), st.integers(1, 10**5))
def test_a_record_costs_what_crosses_for_it_and_what_the_host_computes(front: Front, records: int, more: int) -> None:
    config = array_of()
    known, unknown = (step_overhead(config, LOAD, front, each)(records) for each in (TABLE, None))
    assert unknown.record_seconds == pytest.approx((2 * front.crossing_bytes + 8) / 100e6)
    assert known.record_seconds > unknown.record_seconds
    assert known.step_seconds == unknown.step_seconds < exchange_seconds(config, LOAD)
    larger = Front(*(front.forward_share, front.backward_share, front.encode_share), 0, 0, front.crossing_bytes + more)
    assert step_overhead(config, LOAD, larger, TABLE)(records).of(records) > known.of(records)
    alone = step_overhead(array_of(shared=False), LOAD, front)(records)
    assert alone.record_seconds == pytest.approx(unknown.record_seconds / 3)


@given(fronts, st.integers(0, 400), st.sampled_from([0.0, 0.05, 0.3]))
def test_batches_of_a_cut_fit_into_the_host_and_are_within_the_knee_of_all_their_multiples(
    front: Front, room: int, knee: float
) -> None:
    config, tuning = array_of(), TuningSection(knee=knee)
    overhead_at = step_overhead(config, LOAD, front, TABLE)
    classes = device_classes(config, STORE.of(SPEC, SHAPE), SyncSection(tuning=tuning), front=front)
    tables = list(speed_tables(classes).values())

    def rate(batches: list[int]) -> float:
        longest = max(table.seconds(batch) for table, batch in zip(tables, batches, strict=True))
        return sum(batches) / (longest + overhead_at(sum(batches)).of(sum(batches)))

    with pytest.MonkeyPatch.context() as patch:
        moved = front.spared_bytes // 2
        room_bytes = host_room.host_bytes(moved, front.spared_record_bytes, room)
        patch.setattr(f"{first_batches.__module__}.planned_room_bytes", lambda _: room_bytes)
        batches = first_batches(config, classes, tuning, overhead_at, front).tolist()
    assert min(batches) >= 1
    assert sum(batches) <= max(room, len(batches))
    for by in (1 / 8, 1 / 4, 1 / 2):
        fewer = [max(1, int(by * batch)) for batch in batches]
        assert rate(batches) >= (1 - knee) * rate(fewer) * 0.98  # rounding makes them no exact multiples


def stepped(edge: int) -> OverheadAt:
    """A host that takes twice as long for each record of a step of more than `edge`."""
    return lambda records: StepOverhead(0.1, 0.001 if records <= edge else 0.002)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_step_may_grow_to_where_a_record_costs_the_host_more(records: int, edge: int) -> None:
    most = most_step_records(records, stepped(edge))
    assert most >= records
    if records <= edge:
        assert most <= edge
        assert most > edge / 2 or most == records
