"""What the live page remembers of a run: bounded, and true to the records."""

import math
import statistics
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.timeline import HOST_READER
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import EventKind, EventRecord, RoundRecord
from host.monitoring.charts.chart import Curve, Point, thin
from host.monitoring.charts.chart_timeline import MOST_BARS
from host.monitoring.charts.run_curves import RunCurves
from host.monitoring.page.page_state import FINISHED, STARTING, TRAINING, DriveNow, HostIoNow, PageState
from host.monitoring.page.page_view import MOST_BATCH_CURVES, MOST_DRIVES, show_timeline
from host.monitoring.page.run_history import MOST_CHANGES, MOST_EVENTS, MOST_ROUNDS, History
from host.monitoring.recorder import Recorder, ResumePoint
from host.monitoring.run_directory import RunDirectory
from host.monitoring.run_facts import RunFacts
from host.monitoring.run_listener import RunStart, show_round
from tests.support.records import array_rounds, device_round, round_record, service_rounds, with_bands
from tests.support.sync_records import Disturbed, SyncRun

NAMES = tuple(f"csd-{number:02d}" for number in range(4))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.just(math.nan)


def plan(devices: tuple[str, ...] = NAMES) -> RunFacts:
    return RunFacts("lab", "qemu", "digits_cnn", "federated", devices, rounds=12, target_accuracy=0.95)


def played(records: list[RoundRecord], devices: tuple[str, ...] = NAMES) -> History:
    history = History(plan(devices))
    history.begin(RunStart("counted", "runs/lab"))
    for record in records:
        show_round([history], record)
    return history


def shown(history: History, devices: tuple[str, ...] = NAMES, state: str = "training") -> PageState:
    return history.state({name: (state, None) for name in devices}, "0a", "0.1.0")


def drives_of(state: PageState) -> dict[str, DriveNow]:
    return {drive.name: drive for drive in state.drives}


def curve(state: PageState, chart: str, name: str) -> Curve:
    """Return a curve of a chart."""
    (found,) = (
        each
        for of in state.charts
        if of.name == chart
        for pane in of.panes
        for each in pane.curves
        if each.name == name
    )
    return found


@given(st.lists(NUMBERS, max_size=10) | st.lists(NUMBERS, min_size=20, max_size=100), st.integers(4, 30))
def test_a_thinned_curve_is_part_of_it_with_both_ends_and_both_extremes(values: list[float], most: int) -> None:
    points = [(float(x), y) for x, y in enumerate(values)]
    kept = thin(points, most)
    assert len(kept) <= max(most, 4)
    check_part(points, kept)


@given(st.lists(NUMBERS, min_size=10, max_size=100), st.integers(8, 20))
def test_a_curve_stays_bounded_however_long_it_grows(values: list[float], most: int) -> None:
    curves = RunCurves()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("host.monitoring.charts.run_curves.MOST_KEPT", most)
        for x, y in enumerate(values):
            curves.add("loss", float(x), y)
            assert len(curves.points()["loss"]) <= most
    check_part([(float(x), y) for x, y in enumerate(values)], curves.points()["loss"])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=20, max_size=100), st.integers(4, 30))
def test_a_thinned_band_keeps_its_lowest_and_its_highest(edges: list[tuple[float, float]], most: int) -> None:
    points = [(float(x), min(pair), max(pair)) for x, pair in enumerate(edges) if all(map(math.isfinite, pair))]
    kept = thin(points, most)
    assert len(kept) <= most
    if points:
        assert min(low for _, low, _ in kept) == min(low for _, low, _ in points)
        assert max(high for *_, high in kept) == max(high for *_, high in points)


def check_part(points: list[Point], kept: list[Point]) -> None:
    xs = [x for x, _ in kept]
    assert xs == sorted(set(xs))
    assert {x for x, _ in points} >= set(xs)
    if not points:
        return
    assert (xs[0], xs[-1]) == (points[0][0], points[-1][0])
    finite, found = ([y for _, y in each if math.isfinite(y)] for each in (points, kept))
    if finite:
        assert (min(found), max(found)) == (min(finite), max(finite))


def test_what_never_ends_is_remembered_in_part() -> None:
    history = History(plan())
    for number in range(3 * MOST_EVENTS):
        history.add_event(EventRecord(NAMES[0], EventKind.NOTE, str(number)))
        history.add_round(round_record([device_round(NAMES[0], 64, PhaseSeconds(forward=1.0), batch_size=1 + number)]))
    now = shown(history)
    assert [event.detail for event in now.events] == [
        str(number) for number in reversed(range(2 * MOST_EVENTS, 3 * MOST_EVENTS))
    ]
    assert [event.number for event in reversed(now.events)] == list(range(2 * MOST_EVENTS + 1, 3 * MOST_EVENTS + 1))
    assert len(now.rounds) == MOST_ROUNDS
    assert len(now.batches[NAMES[0]].x) == MOST_CHANGES + 1  # and the end
    assert drives_of(now)[NAMES[0]].batch_size == 3 * MOST_EVENTS


def test_totals_and_drives_are_those_of_the_records() -> None:
    rounds = array_rounds(7, NAMES)
    now = shown(played(rounds))
    assert now.totals.round == 7
    assert now.totals.records == sum(part.samples for record in rounds for part in record.devices)
    assert now.totals.array_seconds == pytest.approx(math.fsum(record.array_seconds for record in rounds))
    assert now.totals.wall_seconds == pytest.approx(7 * 9.0)
    assert now.totals.joules == pytest.approx(math.fsum(record.total_joules for record in rounds))
    assert now.totals.watts == pytest.approx(rounds[-1].total_joules / rounds[-1].array_seconds)
    for number, name in enumerate(NAMES):
        parts = [record.devices[number] for record in rounds]
        drive, last = drives_of(now)[name], parts[-1]
        assert (drive.rounds, drive.records) == (7, sum(part.samples for part in parts))
        assert (drive.clock, drive.batch_size) == ("counted", 32)
        joules = math.fsum(value for part in parts for value in part.energy_joules.values())
        assert drive.joules == pytest.approx(joules, rel=1e-5)
        assert drive.records_per_device_second == pytest.approx(last.samples / last.device_seconds.total, rel=1e-5)
        assert drive.watts == pytest.approx(sum(last.energy_joules.values()) / rounds[-1].array_seconds, rel=1e-5)
    accuracy = curve(now, "accuracy", "accuracy")
    assert accuracy.x == pytest.approx([record.end_seconds for record in rounds], rel=1e-5)
    assert accuracy.y == pytest.approx([record.accuracy for record in rounds], rel=1e-5)
    drives, host = (curve(now, "power", name).y for name in ("drives", "host and chassis"))
    assert np.add(drives, host) == pytest.approx([r.total_joules / r.array_seconds for r in rounds], rel=1e-5)


def test_a_drive_that_serves_a_host_says_so_of_its_last_round() -> None:
    history = played(service_rounds(3, NAMES[:2]))
    found = [drives_of(shown(history))[name].host_io for name in NAMES]
    assert found[:2] == [
        HostIoNow(commands_per_second=20_000.0, p99_seconds=4.5e-3, queue_depth=2.4),
        HostIoNow(commands_per_second=20_000.0, p99_seconds=6e-3, queue_depth=2.4),
    ]
    assert found[2:] == [None, None]
    history.add_round(array_rounds(1, NAMES)[0])
    assert drives_of(shown(history))[NAMES[0]].host_io is None


def test_what_is_drawn_is_also_told_by_name_for_one_release() -> None:
    now = shown(played(array_rounds(3, NAMES)))
    drawn = {(tuple(each.x), tuple(each.y)) for of in now.charts for pane in of.panes for each in pane.curves}
    assert drawn >= {(tuple(each.x), tuple(each.y)) for each in now.batches.values()}
    told = {(tuple(each.x), tuple(each.y)) for name, each in now.series.items() if not name.startswith("batch_")}
    assert drawn >= told


def test_who_is_late_or_missing_has_no_rate_and_is_still_charged_energy() -> None:
    first, second = array_rounds(2, NAMES[:2])
    late = msgspec.structs.replace(second.devices[0], straggler=True)
    second = msgspec.structs.replace(
        second, devices=[late], energy_joules={NAMES[1]: {"idle": 2.0}, HOST: {"idle": 1.0}}, lost=[NAMES[1]]
    )
    before, now = (shown(played(rounds), NAMES[:2]) for rounds in ([first], [first, second]))
    for name in NAMES[:2]:
        assert drives_of(now)[name].records == drives_of(before)[name].records
        assert drives_of(now)[name].records_per_device_second is None
    assert drives_of(now)[NAMES[0]].straggler
    missing = drives_of(now)[NAMES[1]]
    assert missing.joules == pytest.approx(drives_of(before)[NAMES[1]].joules + 2.0, rel=1e-5)
    assert missing.watts == pytest.approx(2.0 / second.array_seconds, rel=1e-5)
    assert now.rounds[0].drives == 0


def test_batches_of_a_synchronous_run_follow_its_retunes() -> None:
    run = SyncRun(drives=4, steps=200, round_steps=50)
    records = run.make()
    nodes = (*run.names, HOST)
    state = shown(played(records, nodes), nodes)
    starts, at = {}, 0.0
    for step in (step for record in records for step in record.steps):
        starts[step.step] = at
        at += step.array_seconds
    assert set(state.batches) == set(run.names), "the host's own batch would dwarf them"
    for name in run.names:
        expected = [(0.0, run.batches(1)[name])]
        for retune in (retune for record in records for retune in record.retunes):
            if retune.after[name] != expected[-1][1]:
                expected.append((starts[retune.step], retune.after[name]))
        drawn = curve(state, "batches", name)
        assert drawn.y[:-1] == [batch for _, batch in expected]
        assert drawn.x[:-1] == pytest.approx([x for x, _ in expected], rel=1e-5)
    assert len(set(state.batches["csd-01"].y)) > 1
    assert state.totals.steps == 200
    assert state.totals.last_step == {
        "devices": "5 train",
        "layers": "all on the drives",
        "batches": "csd-00 and 3 more 32, host 514",
        "slices": "whole tensors",
    }
    last = records[-1].steps[-1].devices[0]
    assert drives_of(state)["csd-00"].slowdown == pytest.approx(last.slowdown, rel=1e-5)
    assert statistics.median_low(run.batches(70)[name] for name in run.names) in state.series["batch_median"].y


def test_of_many_drives_the_batches_of_those_are_drawn_that_changed() -> None:
    run = SyncRun(drives=12, steps=100, disturbed=[Disturbed("csd-05", 20, 30, 100), Disturbed("csd-07", 60, 20, 200)])
    state = shown(played(run.make(), tuple(run.names)), tuple(run.names))
    assert set(state.batches) == {"csd-05", "csd-07"}
    assert len(state.batches) <= MOST_BATCH_CURVES
    assert state.hidden_batches == 10


def test_phases_and_revisions() -> None:
    moments = iter(range(100))
    history = History(plan(), lambda: float(next(moments)))
    seen = [history.revision]
    assert history.phase == STARTING
    history.begin(RunStart("counted", "runs/lab"))
    seen.append(history.revision)
    assert history.phase == TRAINING
    history.add_event(EventRecord(NAMES[0], EventKind.LOST))
    seen.append(history.revision)
    history.add_round(round_record([]))
    seen.append(history.revision)
    history.end()
    seen.append(history.revision)
    assert history.phase == FINISHED
    history.add_event(EventRecord(NAMES[1], EventKind.LEFT))
    seen.append(history.revision)
    assert seen == sorted(set(seen))
    now = shown(history).run
    assert (now.run_directory, now.clock, now.changed_unix_seconds) == ("runs/lab", "counted", 5.0)


def test_a_state_never_changes() -> None:
    history = History(plan())
    rounds = array_rounds(2, NAMES)
    history.add_round(rounds[0])
    now = shown(history)
    kept = msgspec.json.encode(now)
    history.add_round(rounds[1])
    assert msgspec.json.encode(now) == kept
    assert msgspec.json.encode(shown(history)) != kept


def test_a_run_that_diverged_has_gaps_and_its_json_is_valid() -> None:
    rounds = array_rounds(3, NAMES, test_loss=math.nan, train_loss=math.inf)
    text = msgspec.json.encode(shown(played(rounds)))
    state = msgspec.json.decode(text, type=PageState)
    assert state.totals.test_loss is None
    assert state.series["test_loss"].y == [None, None, None]
    assert state.series["train_loss"].y == [None, None, None]
    assert None not in state.series["accuracy"].y


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_any_number_of_drives_before_and_after_the_first_round(count: int) -> None:
    names = tuple(f"csd-{number:04d}" for number in range(count))
    for rounds in ([], array_rounds(1, names) if names else []):
        state = shown(played(rounds, names), names, "ready")
        again = msgspec.json.decode(msgspec.json.encode(state), type=PageState)
        assert [drive.name for drive in again.drives] == list(names)
        assert again.states == ({"ready": count} if count else {})


def test_the_timeline_has_the_drives_that_matter_and_no_more_than_can_be_read() -> None:
    names = tuple(f"csd-{number:03d}" for number in range(100))
    rounds = array_rounds(3, names)
    late = [msgspec.structs.replace(part, straggler=part.device == "csd-050") for part in rounds[-1].devices]
    rounds[-1] = msgspec.structs.replace(rounds[-1], devices=late)
    timeline = show_timeline(rounds, names, {"csd-070": 1.5})
    assert timeline is not None
    assert len(timeline.rows) <= MOST_DRIVES + 2
    assert {"csd-050", "csd-070"} <= set(timeline.rows)
    assert timeline.rows[-1] == HOST
    assert len(timeline.bars) <= MOST_BARS
    assert "of 100 drives" in timeline.note
    last = {span.device: span.end_seconds for span in rounds[-1].spans if span.device != HOST}
    slowest = max(last, key=lambda name: last[name])
    assert slowest in timeline.rows
    for row, phase, begin, end in timeline.bars:
        assert timeline.rows[row]
        assert timeline.phases[phase]
        assert timeline.begins[0] - 1e-9 <= begin <= end


def test_the_timeline_of_a_synchronous_run_is_of_its_last_steps() -> None:
    records = SyncRun(drives=3, steps=100, round_steps=50).make()
    timeline = show_timeline(records, (), {})
    assert timeline is not None
    assert timeline.title == "steps 97 to 100"
    assert timeline.rows == ["csd-00", "csd-01", "csd-02", HOST]
    assert HOST_READER not in timeline.rows
    assert show_timeline([], (), {}) is None
    assert show_timeline([round_record([])], (), {}) is None


def test_a_resumed_run_shows_its_past_rounds_and_counts_on(tmp_path: Path) -> None:
    history = History(plan())
    with RunDirectory.create(tmp_path, "lab") as directory:
        for record in array_rounds(5, NAMES):
            directory.append(record)
        recorder = Recorder([history], "sha", 1, ResumePoint(directory, 5))
        now = shown(history)
        assert (now.totals.round, len(now.rounds), len(now.series["accuracy"].x)) == (5, 5, 5)
        assert [(event.device, event.what) for event in now.events] == [(HOST, "resumed")]
        recorder.add_event(NAMES[0], EventKind.LOST, "gone")
    recorder.add_event(NAMES[0], EventKind.REJOINED, "")  # when the directory is closed, for the page alone
    assert [event.what for event in shown(history).events] == ["rejoined", "lost", "resumed"]


# Name in the state -> that of its band.
SUMS = {"array_seconds": "array_seconds", "joules": "energy_joules"}
OF_ROUNDS = {name: name for name in ("records_per_device_second", "records_per_array_second", "watts")}


@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=4))
def test_seconds_watts_and_joules_lie_within_their_bands(lengths: list[float]) -> None:
    rounds = array_rounds(len(lengths), NAMES)
    longer = [msgspec.structs.replace(each, array_seconds=own) for each, own in zip(rounds, lengths, strict=True)]
    state = shown(played([with_bands(record) for record in longer]))
    for figures in (state.totals, *state.rounds):
        for name, band in (SUMS | OF_ROUNDS).items():
            own = figures.bands[band]
            assert own.low * (1 - 1e-9) <= getattr(figures, name) <= own.high * (1 + 1e-9)
    assert {name: state.totals.bands[name] for name in OF_ROUNDS} == {
        name: state.rounds[0].bands[name] for name in OF_ROUNDS
    }
    for drive in state.drives:
        assert drive.bands.keys() == {"device_seconds", "energy_joules", "watts"}
        assert drive.watts is not None
        assert drive.bands["watts"].low * (1 - 1e-4) <= drive.watts <= drive.bands["watts"].high * (1 + 1e-4)


def test_the_last_round_has_bands_where_the_run_has_none() -> None:
    first, last = array_rounds(2, NAMES)
    state = shown(played([first, with_bands(last)]))
    assert state.totals.bands.keys() == OF_ROUNDS.keys()
    assert [drive.bands.keys() for drive in state.drives] == [{"watts"}] * len(NAMES)
    bare = shown(played([with_bands(first), last]))
    assert [bare.totals.bands, bare.rounds[0].bands, *(drive.bands for drive in bare.drives)] == [{}] * (2 + len(NAMES))
