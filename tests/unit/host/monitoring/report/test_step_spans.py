"""What the report says of synchronous runs: phases and their energy, courses of batches, the page."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.profiles import PROFILES
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import RetuneRecord, RoundRecord
from host.monitoring.charts.chart_timeline import MOST_BARS, make_timeline
from host.monitoring.report.charts.batch_courses import change_points, choose_courses, list_courses
from host.monitoring.report.compare_baseline import compare
from host.monitoring.report.competing import explain, undisturbed_share
from host.monitoring.report.load_run import load_run
from host.monitoring.report.report_page import render
from host.monitoring.report.run_work import newport_seconds
from host.monitoring.report.step_spans import list_phases, list_steps, share_energy, share_of_possible
from tests.support.examples import examples
from tests.support.pages import Page
from tests.support.records import array_rounds, device_round, write_run
from tests.support.sync_records import HOST_RATIO, Disturbed, SyncRun

HOSTILE = "</svg><script>alert(1)</script>&\"'$x^2$\x00\x1b[31m\u202e"
SYNC_JOB = {"mode": "sync", "tuner": "hypertune"}


def page_of(folder: Path, rounds: list[RoundRecord], drives: int = 4) -> Page:
    run = load_run(write_run(folder, rounds, drives, job=SYNC_JOB))
    page = Page(render(run, compare(run)))
    page.assert_sound()
    return page


disturbances = st.lists(
    st.builds(
        Disturbed, st.sampled_from(["csd-00", "csd-01"]), st.integers(1, 30), st.integers(1, 20), st.integers(1, 400)
    ),
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(disturbances, st.integers(1, 40), st.integers(1, 50))
def test_phases_cover_every_step_once_and_all_energy(spells: list[Disturbed], steps: int, per_round: int) -> None:
    rounds = SyncRun(drives=2, steps=steps, round_steps=per_round, disturbed=spells).make()
    phases = list_phases(rounds)
    assert [number for each in phases for number in range(each.first, each.last + 1)] == list(range(1, steps + 1))
    assert sum(each.samples for each in phases) == sum(step.samples for step in list_steps(rounds))
    assert math.fsum(each.joules for each in phases) == pytest.approx(sum(record.total_joules for record in rounds))
    assert math.fsum(each.array_seconds for each in phases) == pytest.approx(sum(r.array_seconds for r in rounds))
    assert all(one.disturbed != other.disturbed for one, other in pairwise(phases))


def test_phases_are_named_after_what_happens_around_them() -> None:
    phases = list_phases(SyncRun().make())
    assert [(each.name, each.first, each.last) for each in phases] == [
        ("before", 1, 59),
        ("during", 60, 119),
        ("between", 120, 149),
        ("during", 150, 169),
        ("after", 170, 200),
    ]
    during = phases[1]
    assert during.disturbed == {"csd-01": 100}
    assert during.share is not None
    assert during.settled_share is not None
    assert during.share < 0.95 < during.settled_share <= 1.01
    assert phases[0].settled_share is None
    assert during.possible_records_per_second == pytest.approx(during.records_per_compute_second / during.share)
    assert during.joules_per_record is not None
    assert phases[0].joules_per_record is not None
    assert during.joules_per_record > phases[0].joules_per_record


def test_without_disturbances_phases_lie_between_retunes() -> None:
    rounds = SyncRun(spoiled={step: {"disturbed": {}} for step in range(1, 201)}).make()
    assert [(each.name, each.first) for each in list_phases(rounds)] == [
        ("before any retune", 1),
        ("retuned at step 64", 64),
        ("retuned at step 124", 124),
        ("retuned at step 154", 154),
        ("retuned at step 174", 174),
    ]
    quiet = SyncRun(steps=20, disturbed=()).make()
    assert [each.name for each in list_phases(quiet)] == ["all steps"]
    assert list_phases(array_rounds(2, ["csd-00"])) == []


def test_what_is_not_known_without_tables_is_not_made_up() -> None:
    rounds = SyncRun(steps=3, spoiled={n: {"possible_records_per_second": 0.0} for n in (1, 2, 3)}).make()
    (phase,) = list_phases(rounds)
    assert (phase.share, phase.possible_records_per_second, phase.settled_share) == (None, None, None)
    known = SyncRun(steps=3, spoiled={1: {"possible_records_per_second": 0.0}}).make()
    assert share_of_possible(list_steps(known)) == pytest.approx(share_of_possible(list_steps(known)[1:]))


def test_energy_follows_its_causes() -> None:
    record = SyncRun(drives=2, steps=10, round_steps=10, disturbed=[Disturbed("csd-01", 3, 1, 100, notice=20)]).make()[
        0
    ]
    undisturbed, disturbed, _ = (
        msgspec.structs.replace(part, energy_joules={"cpu": joules})
        for part, joules in zip(record.devices, (10.0, 11.0, 0.0), strict=True)
    )
    # The third step took twice as long as each of the nine others, but only one drive computed for so long.
    for part, expected in ((undisturbed, 1.0), (disturbed, 2.0)):
        joules = share_energy(msgspec.structs.replace(record, devices=[part], energy_joules={}))
        assert math.fsum(joules) == pytest.approx(sum(part.energy_joules.values()))
        assert joules[2] == pytest.approx(expected, rel=0.02)
    idle = msgspec.structs.replace(record, devices=[], energy_joules={HOST: {"idle": 5.0}})
    seconds = [step.array_seconds for step in record.steps]
    assert share_energy(idle) == pytest.approx([5.0 * each / sum(seconds) for each in seconds])


@pytest.mark.slow
def test_devices_that_go_together_share_a_course() -> None:
    courses = list_courses(list_steps(SyncRun(drives=36).make()))
    assert [(course.label, len(course.devices)) for course in courses] == [
        ("csd-00 and 33 more", 34),
        ("csd-01", 1),
        ("csd-03", 1),
        ("host", 1),
    ]
    points = change_points(courses[1].sizes)
    assert [(at, courses[1].sizes[at]) for at in points] == [(0, 32), (63, 15), (123, 32), (199, 32)]


@given(st.integers(2, 8))
def test_at_most_so_many_courses_are_lines_and_none_is_lost(most: int) -> None:
    spells = [Disturbed(f"csd-{number:02d}", 5 + number, 10, 20 * number + 20) for number in range(9)]
    courses = list_courses(list_steps(SyncRun(drives=10, steps=40, disturbed=spells).make()))
    lines, others = choose_courses(courses, most)
    assert len(lines) == most - 1
    assert {id(course) for course in lines + others} == {id(course) for course in courses}
    assert any(HOST in course.devices for course in lines)
    least = min(course.changes for course in lines if HOST not in course.devices) if most > 2 else math.inf
    assert all(course.changes <= least for course in others)


def test_a_device_that_is_gone_leaves_a_gap() -> None:
    steps = list_steps(SyncRun(drives=2, steps=6, disturbed=()).make())
    steps[3] = msgspec.structs.replace(steps[3], devices=steps[3].devices[1:])
    gone, *_ = list_courses(steps)
    assert np.isnan(gone.sizes).tolist() == [False, False, False, True, False, False]
    assert change_points(gone.sizes) == [0, 3, 4, 5]


@pytest.mark.slow
def test_the_timeline_shows_the_last_steps_only() -> None:
    rounds = SyncRun().make()
    names = [f"csd-{number:02d}" for number in range(4)]
    chosen = make_timeline(rounds, names)
    assert chosen is not None
    assert chosen.title == "steps 197 to 200"
    assert "a step begins. The last of 200 steps." in chosen.caption
    assert len(chosen.bars) == 4 * 21
    assert min(begin for _, _, begin, _ in chosen.bars) == pytest.approx(chosen.begins[0])
    some = make_timeline(rounds, names[:2])
    assert some is not None
    assert some.rows == [*names[:2], HOST]
    many = make_timeline(SyncRun(drives=250, steps=5, round_steps=5).make(), [f"csd-{n:02d}" for n in range(250)])
    assert many is not None
    assert len(many.bars) == MOST_BARS
    assert many.title == "step 5"
    assert "Only the beginning" in many.note


def test_the_baseline_is_not_slowed_down_by_competing_work() -> None:
    rounds = SyncRun().make()
    disturbed = rounds[1]
    assert undisturbed_share(disturbed, "csd-00") == pytest.approx(1.0)
    assert undisturbed_share(disturbed, "csd-01") == pytest.approx(0.5833, abs=0.003)  # (9 + 4 + 37 / 2) / (9 + 8 + 37)
    assert undisturbed_share(array_rounds(1, ["csd-00"])[0], "csd-00") == 1.0
    assert "80 steps" not in explain(SyncRun(disturbed=()).make(), [], {})
    assert "ran in drives in 80 steps" in explain(rounds, [], {})


def test_a_host_that_keeps_its_records_has_read_a_rounds_worth(tmp_path: Path) -> None:
    rounds = SyncRun(disturbed=()).make()
    run = load_run(write_run(tmp_path, rounds, 4, job=SYNC_JOB))
    compared = compare(run)
    assert compared.cached_link_bytes == sum(part.flash_read_bytes for part in rounds[0].devices) // 2  # two epochs
    assert [each.break_even_drives for each in compared.band] == [None] * 3


def test_a_training_host_counts_as_the_drives_that_it_is_modelled_as() -> None:
    part = device_round(HOST, 100, PhaseSeconds(forward=1.0, backward=2.0))
    seconds = newport_seconds(part, PROFILES["xeon-4108"])
    assert (seconds["forward"], seconds["backward"]) == pytest.approx((HOST_RATIO, 2 * HOST_RATIO))


@pytest.mark.slow
def test_the_page_of_a_synchronous_run(tmp_path: Path) -> None:
    spoiled: dict[int, dict[str, Any]] = {
        10: {"late": ["csd-02"]},
        11: {"lost": ["csd-03"], "mixed": True},
    }
    rounds = SyncRun(spoiled=spoiled).make()
    page = page_of(tmp_path, [*rounds[:-1], msgspec.structs.replace(rounds[-1], gradient_noise_records=1234.4)])
    assert "gradient noise scale" in page.text
    assert "1,234" in page.text
    for text in ("Synchronous steps", "before", "during", "csd-01 (weight 100)", "csd-01 32 -> 15", "21.5 steps"):
        assert text in page.text
    for text in (
        "of what was possible",
        "tuner hypertune",
        "Late, in steps: csd-02 1",
    ):
        assert text in page.text
    assert "counted+modelled" in page.text
    assert "drives needed to be as fast" not in page.text
    assert "modelled at 15.2 newport drives. Only the middle column" in page.text
    assert "competing work in steps 60 to 119" in page.raw
    assert "step 64: batches: csd-01 32 -&gt; 15. csd-01 slower since step 60" in page.raw
    assert {"batches-wide-title", "rates-wide-title", "imbalance-wide-title", "timeline-wide-title"} <= set(page.charts)
    assert "xeon-4108" in page.text


@pytest.mark.slow
def test_the_page_of_a_federated_run_says_nothing_of_steps(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, array_rounds(2, ["csd-00"]), 1))
    page = Page(render(run, compare(run)))
    assert "Synchronous steps" not in page.text
    assert "strategy fedavg" in page.text
    assert "Only the middle column" not in page.text


@pytest.mark.long
def test_a_long_run_of_many_drives_stays_small(tmp_path: Path) -> None:
    spells = [Disturbed(f"csd-{number % 36:02d}", 5 + 6 * number, 4, 20 + number) for number in range(98)]
    page = page_of(tmp_path, SyncRun(drives=36, steps=600, round_steps=300, disturbed=spells).make(), 36)
    assert len(page.raw) < 2_000_000
    assert "earlier phases are not shown" in page.text
    assert "earlier decisions are not shown" in page.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"devices": []},
        {"array_seconds": 0.0},
        {"loss": math.nan},
        {"possible_records_per_second": 0.0},
    ],
)
def test_steps_that_know_little_make_a_sound_page(tmp_path: Path, fields: dict[str, Any]) -> None:
    spoiled = {step: fields for step in range(1, 5)}
    page_of(tmp_path, SyncRun(drives=2, steps=4, spoiled=spoiled).make(), 2)


@pytest.mark.slow
def test_hostile_names_and_reasons_are_text(tmp_path: Path) -> None:
    first = SyncRun(drives=2, steps=4).make()[0]
    parts = [msgspec.structs.replace(first.steps[0].devices[0], device=HOSTILE)]
    steps = [
        msgspec.structs.replace(step, devices=parts, late=[HOSTILE], disturbed={HOSTILE: 7}) for step in first.steps
    ]
    retune = RetuneRecord(step=3, reason=HOSTILE, before={HOSTILE: 1}, after={HOSTILE: 2}, gain_steps=math.inf)
    page = page_of(tmp_path, [msgspec.structs.replace(first, steps=steps, retunes=[retune])], 2)
    assert "<script>alert(1)</script>" in page.text
    assert "alert(1)</script>" not in page.raw
    assert "not a number" not in page.text
