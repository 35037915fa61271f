"""Work that was discarded, and work that a competing task slowed down: neither may flatter or spoil a comparison."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.timeline import Link
from csd_emu.profiles import PROFILES
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import DeviceRound, EventKind, EventRecord, RoundRecord
from host.core.run_stats import RunStats
from host.monitoring.report.charts.training_charts import throughput_chart
from host.monitoring.report.compare_baseline import compare
from host.monitoring.report.competing import explain, stand_ins
from host.monitoring.report.load_run import RunData, load_run
from host.monitoring.report.report_page import render
from host.monitoring.report.run_work import RunWork
from tests.support.pages import Page
from tests.support.records import READ_BYTES, array_rounds, device_round, round_record, write_run

NAMES = ["csd-00", "csd-01"]
KINDS = dict.fromkeys(NAMES, "newport")
NEWPORT, XEON = PROFILES["newport"], PROFILES["xeon-4108"]
SLOW, ENDED = "slow: a competing task of weight 3", "slow: the competing task has ended"


def run_of(rounds: list[RoundRecord], events: list[EventRecord] | None = None) -> RunData:
    fields = {"array": {"engine": "qemu"}, "job": {"epochs": 2}, "devices": KINDS}
    return RunData(Path("run"), rounds, events or [], **fields)  # type: ignore[arg-type]


def with_parts(record: RoundRecord, device: str, **fields: object) -> RoundRecord:
    parts = [msgspec.structs.replace(part, **fields) if part.device == device else part for part in record.devices]
    return msgspec.structs.replace(record, devices=parts)


def slow_part(part: DeviceRound, factor: float) -> DeviceRound:
    seconds = {name: getattr(part.device_seconds, name) * factor for name in PhaseSeconds.__struct_fields__}
    return msgspec.structs.replace(part, device_seconds=PhaseSeconds(**seconds))


def slowed(record: RoundRecord, device: str, factor: float = 4.0) -> RoundRecord:
    """Return the round with a drive's compute slowed down; its length stays, for it is the baseline that is tested."""
    parts = [slow_part(part, factor) if part.device == device else part for part in record.devices]
    return msgspec.structs.replace(record, devices=parts)


def begins(record: RoundRecord, detail: str, device: str = "csd-00") -> EventRecord:
    return EventRecord(device, EventKind.INJECTED, detail, 0.0, record.start_seconds)


@pytest.mark.slow
@given(st.sets(st.tuples(st.integers(0, 2), st.sampled_from(NAMES))))
def test_late_parts_count_as_link_bytes_and_energy_only(late: set[tuple[int, str]]) -> None:
    plain = array_rounds(3, NAMES)
    rounds = [
        msgspec.structs.replace(
            record,
            devices=[msgspec.structs.replace(part, straggler=(at, part.device) in late) for part in record.devices],
        )
        for at, record in enumerate(plain)
    ]
    counted = [part for record in rounds for part in record.devices if not part.straggler]
    totals, before = RunStats.of(rounds), RunStats.of(plain)
    assert totals.samples == sum(part.samples for part in counted)
    assert totals.compute_seconds == pytest.approx(sum(part.device_seconds.total for part in counted))
    assert totals.read_bytes == READ_BYTES * len(counted)
    assert (totals.link_bytes, totals.energy_joules) == (before.link_bytes, before.energy_joules)
    comparison = compare(run_of(rounds))
    assert comparison.samples == totals.samples
    assert comparison.baseline_link_bytes == totals.read_bytes
    assert bool(comparison.band) == bool(counted)
    for each in comparison.band:
        seconds = sum(part.device_seconds.total - part.device_seconds.encode for part in counted)
        assert each.compute_seconds == pytest.approx(seconds / each.ratio)


def test_a_late_part_makes_the_run_no_faster() -> None:
    rounds = array_rounds(3, NAMES)
    late = [with_parts(rounds[0], "csd-01", straggler=True), *rounds[1:]]
    for ours, before in zip(compare(run_of(late)).band, compare(run_of(rounds)).band, strict=True):
        assert ours.speedup < before.speedup


def test_a_late_part_is_a_gap_in_the_throughput() -> None:
    late = with_parts(array_rounds(1, NAMES)[0], "csd-01", straggler=True)
    rates = {each.name: each.y for each in throughput_chart([late], NAMES).panes[0].curves}
    assert rates["csd-00"][0]
    assert rates["csd-01"] == [None]


@pytest.mark.slow
def test_a_run_in_which_all_were_late_says_that_nothing_counted(tmp_path: Path) -> None:
    rounds = array_rounds(2, NAMES)
    for device in NAMES:
        rounds = [with_parts(record, device, straggler=True) for record in rounds]
    run = load_run(write_run(tmp_path, rounds, 2))
    comparison = compare(run)
    assert "Nothing counted" in comparison.reason
    assert comparison.band == []
    page = Page(render(run, comparison))
    page.assert_sound()
    assert "Nothing counted: every drive was late" in page.text
    assert "energy per record" not in page.text


def test_a_competing_task_leaves_the_baseline_as_it_was() -> None:
    rounds = array_rounds(4, NAMES)
    events = [begins(rounds[1], SLOW), begins(rounds[3], ENDED)]
    disturbed = [rounds[0], *(slowed(record, "csd-00") for record in rounds[1:3]), rounds[3]]
    plain, ours = compare(run_of(rounds)).band, compare(run_of(disturbed, events)).band
    assert [each.seconds for each in ours] == pytest.approx([each.seconds for each in plain])
    assert set(stand_ins(disturbed, events, KINDS)) == {(2, "csd-00"), (3, "csd-00")}
    assert "2 parts" in explain(disturbed, events, KINDS)
    assert "slowed down too" not in explain(disturbed, events, KINDS)


def test_a_drive_that_was_slow_from_the_first_round_borrows_from_one_of_its_kind() -> None:
    rounds = [slowed(record, "csd-00") for record in array_rounds(2, NAMES)]
    events = [begins(rounds[0], SLOW)]
    assert {part and part.device for part in stand_ins(rounds, events, KINDS).values()} == {"csd-01"}
    assert set(stand_ins(rounds, events, {**KINDS, "csd-01": "other"}).values()) == {None}
    larger = [with_parts(record, "csd-01", batch_size=64) for record in rounds]
    assert set(stand_ins(larger, events, KINDS).values()) == {None}


@pytest.mark.slow
def test_where_nothing_was_free_of_it_the_page_says_so(tmp_path: Path) -> None:
    rounds = [slowed(record, "csd-00") for record in array_rounds(2, ["csd-00"])]
    run = load_run(write_run(tmp_path, [begins(rounds[0], SLOW), *rounds], 1))
    assert compare(run).band
    assert "the baseline is slowed down too" in Page(render(run, compare(run))).text


@pytest.mark.parametrize(
    ("event", "number"),
    [
        (EventRecord("csd-00", EventKind.LOST, "its stream ended"), 2),
        (EventRecord("csd-00", EventKind.REJOINED), 2),
        (EventRecord("host", EventKind.RESUMED), 2),
        (EventRecord("csd-00", EventKind.INJECTED, ENDED), 2),
        (EventRecord("csd-01", EventKind.LOST), 4),
        (EventRecord("csd-00", EventKind.INJECTED, "corrupt: the next slice that it sends"), 4),
    ],
)
def test_a_competing_task_ends_with_its_session(event: EventRecord, number: int) -> None:
    rounds = array_rounds(4, NAMES)
    end = msgspec.structs.replace(event, array_seconds=rounds[2].start_seconds)
    assert len(stand_ins(rounds, [begins(rounds[0], SLOW), end], KINDS)) == number


@pytest.mark.parametrize("events", [[], [EventRecord("csd-00", EventKind.INJECTED, ENDED)]])
def test_without_a_competing_task_there_is_nothing_to_say(events: list[EventRecord]) -> None:
    assert explain(array_rounds(2, NAMES), events, KINDS) == ""


def test_the_mean_kind_is_of_all_drives_in_any_order() -> None:
    """One drive's flash takes 1 s for its share, the other's 3 s, with 2 and 4 ms for each read."""
    flash, link = NEWPORT.flash_bytes_per_second, Link(1e15, 0.0, shared=False)
    kinds = [
        replace(
            NEWPORT,
            flash_bytes_per_second=replace(flash, value=1e6 / seconds),
            flash_latency_seconds=replace(NEWPORT.flash_latency_seconds, value=latency),
            link_latency_seconds=replace(NEWPORT.link_latency_seconds, value=0.0),
        )
        for seconds, latency in ((1.0, 0.002), (3.0, 0.004))
    ]
    parts = [
        device_round(
            name, 320, PhaseSeconds(forward=0.5), steps=10, flash_read_bytes=10**6, sent_bytes=0, received_bytes=0
        )
        for name in NAMES
    ]
    for order in (kinds, kinds[::-1]):
        work = RunWork([round_record(parts)], dict(zip(NAMES, order, strict=True)), XEON, link)
        assert work.predict_seconds(2) == pytest.approx(0.5 + 2.0 + 10 * 0.003)
        assert work.predict_seconds(4) == pytest.approx((0.5 + 2.0 + 10 * 0.003) / 2)
