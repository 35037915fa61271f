"""The page for any run directory: whole, self-contained, bounded, and nothing in it can act."""

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import EnvironmentUnfit
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.health.drive_health import DriveHealth, IoCounters
from host.core.failures import Failure, FailureRecord
from host.core.records import EventKind, EventRecord, RoundRecord
from host.core.run_stats import RunStats
from host.core.sampling.sampling_record import SamplingRecord
from host.core.sampling.stratum_record import StratumRecord
from host.core.slice_record import SliceRecord
from host.core.summary import summarise
from host.monitoring.report import report_page
from host.monitoring.report.charts.chart_svg import draw_chart, draw_timeline
from host.monitoring.report.compare_baseline import compare
from host.monitoring.report.formats import format_number, format_quantity, format_seconds, format_share
from host.monitoring.report.load_run import load_run
from host.monitoring.report.report_page import render, write_report
from host.monitoring.run_trace import write_slices
from tests.support.examples import examples
from tests.support.pages import Page
from tests.support.records import array_rounds, device_round, round_record, with_bands, write_run

NAMES = ["csd-00", "csd-01", "csd-02"]
# Of a run without a round, whose report draws no chart: a chart takes a tenth of a second.
NO_ROUND = [EventRecord("csd-00", EventKind.LOST, "never came")]
HOSTILE = "</svg><script>alert(1)</script>&\"'$x^2$\x00\x1b[31m\u202e"


def page_of(folder: Path) -> Page:
    run = load_run(folder)
    page = Page(render(run, compare(run)))
    page.assert_sound()
    return page


@pytest.mark.slow
def test_a_run_shows_its_figures_with_their_clocks(tmp_path: Path) -> None:
    rounds = array_rounds(4, NAMES)
    page = page_of(write_run(tmp_path, rounds))
    assert f"{rounds[-1].accuracy:.4f}" in page.text
    assert "records per device second (counted)" in page.text
    assert "records per array second (counted)" in page.text
    assert "wall time of this machine" in page.text
    assert "modelled from the profiles" in page.text
    assert "11 newport drives" in page.text
    assert "21 newport drives" in page.text
    assert "power.idle_watts" in page.text
    assert page.text.count("assumed") > 20
    assert "The run did not finish" in page.text
    assert len(page.charts) == 7  # six charts, the timeline in two widths


@pytest.mark.slow
def test_figures_stand_with_their_bands(tmp_path: Path) -> None:
    rounds = [with_bands(record) for record in array_rounds(4, NAMES)]
    page, stats = page_of(write_run(tmp_path, rounds)), RunStats.of(rounds)
    for shown in (
        f"({format_seconds(stats.array_seconds / 2)} to {format_seconds(stats.array_seconds * 2)})",
        f"({format_number(stats.joules_per_record * 500, 3)} to {format_number(stats.joules_per_record * 2000, 3)})",
        f"({format_number(stats.records_per_device_second / 2, 3)} to "
        f"{format_number(stats.records_per_device_second * 2, 3)})",
        *(
            f"({format_seconds(seconds / 2)} to {format_seconds(seconds * 2)})"
            for seconds in stats.device_seconds.values()
        ),
        *(
            f"({format_number(sum(parts.values()) / 2, 3)} to {format_number(sum(parts.values()) * 2, 3)})"
            for parts in stats.node_joules.values()
        ),
        "In brackets: the band of a figure",
        "(1 GHz to 1.2 GHz)",
        "band: third-party notes",
    ):
        assert shown in page.text
    assert "In brackets: the band of a figure" not in page_of(write_run(tmp_path, array_rounds(4, NAMES))).text


@pytest.mark.slow
@pytest.mark.parametrize("missing", [[], ["csd-01"]])
def test_how_far_seconds_rest_on_samples_is_told_of_the_run_and_of_each_round(
    tmp_path: Path, missing: list[str]
) -> None:
    sampling = SamplingRecord(counted_steps=13, steps=368, error=0.002, start_share=0.005, not_counted=missing)
    rounds = [msgspec.structs.replace(record, sampling=sampling) for record in array_rounds(2, NAMES)]
    page = page_of(write_run(tmp_path / "run", rounds)).text
    assert "26 of 736 steps were counted on a virtual machine" in page
    assert page.count("13 of 368, ±0.20 %") == 2
    assert ("seconds of csd-01 are missing" in page) == (page.count(", 1 drives missing") == 2) == bool(missing)
    assert "Sampling" not in page_of(write_run(tmp_path / "other", array_rounds(2, NAMES))).text


@pytest.mark.slow
def test_strata_of_the_last_round_are_a_table(tmp_path: Path) -> None:
    known = StratumRecord(
        records=32,
        micro_batch=16,
        weight=100,
        stage="steady",
        level=1,
        counted_steps=7,
        steps=1234,
        mean_seconds=0.5,
        scatter=0.0123,
    )
    unknown = msgspec.structs.replace(known, stage="second of a round", mean_seconds=None, scatter=None)
    rounds = array_rounds(2, NAMES)
    for number, strata in enumerate(([unknown] * 3, [known, unknown])):
        sampling = SamplingRecord(counted_steps=13, steps=368, error=0.002, start_share=0.005, strata=strata)
        rounds[number] = msgspec.structs.replace(rounds[number], sampling=sampling)
    text = " ".join(page_of(write_run(tmp_path, rounds)).text.split())
    assert "since the run began, or was resumed; those with most seconds, 2 of them" in text
    cells = re.findall(r"<tr>(<td.*?)</tr>", page_of(tmp_path).raw)
    rows = [[re.sub("<[^>]*>", "", cell) for cell in re.split("</t[dh]>", row)] for row in cells]
    assert ["32", "16", "100", "steady", "1", "7", "1234", format_seconds(0.5), "1.23 %", ""] in rows
    assert ["32", "16", "100", "second of a round", "1", "7", "1234", "unknown", "unknown", ""] in rows
    assert len([row for row in rows if "second of a round" in row]) == 1


@pytest.mark.slow
def test_a_finished_run_says_so(tmp_path: Path) -> None:
    rounds = array_rounds(3, NAMES)
    facts = {
        "array": "lab",
        "engine": "qemu",
        "model": "digits_cnn",
        "target_accuracy": 0.5,
        "reached": True,
        "seed": 0,
    }
    summary = summarise(rounds, wall_seconds=41.5, run_directory=str(tmp_path), **facts)
    write_run(tmp_path, rounds)
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode(summary))
    page = page_of(tmp_path)
    assert "the target accuracy 0.5 was reached" in page.text
    assert "41.5 s" in page.text
    assert "did not finish" not in page.text


@pytest.mark.slow
def test_the_traces_that_are_there_are_linked_from_wherever_the_report_lies(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a run", array_rounds(1, NAMES))
    assert page_of(folder).links == []
    place = {"step": 1, "device": NAMES[0], "direction": "push", "tensor": "fc.weight", "offset": 0, "size_bytes": 64}
    slices = [SliceRecord(**place, ready_seconds=0.0, begin_seconds=0.1, end_seconds=0.2)]  # type: ignore[arg-type]
    write_slices(folder, slices, "lab")
    assert page_of(folder).links == ["slices.json"]
    other = tmp_path / "reports" / "one.html"
    other.parent.mkdir()
    write_report(folder, other)
    page = Page(other.read_text(encoding="utf-8"))
    page.assert_sound()
    assert page.links == ["../a%20run/slices.json"]


def test_no_round_at_all_is_still_a_report(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, NO_ROUND))
    assert "No round was finished" in page.text
    assert "never came" in page.text
    assert page.charts == []


@pytest.mark.slow
def test_a_folder_with_records_alone_is_a_report(tmp_path: Path) -> None:
    write_run(tmp_path, array_rounds(2, NAMES))
    for name in ("array.yaml", "job.yaml", "versions.json"):
        (tmp_path / name).unlink()
    page = page_of(tmp_path)
    assert "There is no array.yaml" in page.text
    assert "Time and energy of the baseline cannot be told" in page.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"spans": []}, {"energy_joules": {}}, {"test_loss": math.nan, "train_loss": math.inf}, {"test_loss": 1.7e308}],
)
def test_what_records_do_not_know_is_left_out(tmp_path: Path, changes: dict[str, Any]) -> None:
    page_of(write_run(tmp_path, array_rounds(3, NAMES, **changes)))


@pytest.mark.slow
def test_records_that_know_no_energy_and_no_time_of_the_array(tmp_path: Path) -> None:
    parts = [device_round("csd-00", 64, PhaseSeconds())]
    page = page_of(write_run(tmp_path, [round_record(parts, test_loss=math.nan, train_loss=math.nan)], 1))
    assert "say nothing of energy" in page.text
    assert "loss not a number after round 1" in page.raw


@pytest.mark.slow
def test_lost_drives_and_stragglers_are_shown(tmp_path: Path) -> None:
    first, second = array_rounds(2, NAMES)
    late = msgspec.structs.replace(second.devices[0], straggler=True)
    second = msgspec.structs.replace(second, devices=[late], lost=["csd-01", "csd-02"])
    events = [
        EventRecord("csd-01", EventKind.LOST, "its stream ended", 3.0, 0.2),
        EventRecord("csd-00", EventKind.JOINED),
    ]
    page = page_of(write_run(tmp_path, [events[0], first, second, events[1]]))
    assert "its stream ended" in page.text
    assert "csd-01, csd-02" in page.text
    assert "joined" not in page.text


@pytest.mark.slow
def test_a_big_run_stays_small(tmp_path: Path) -> None:
    """36 drives and 1000 rounds, with many events: a page that a browser opens at once."""
    names = [f"csd-{number:02d}" for number in range(36)]
    parts = [device_round(name, 32, PhaseSeconds(forward=0.1), flash_read_bytes=64) for name in names]
    rounds: list[RoundRecord | EventRecord] = [
        round_record(parts, round=number, start_seconds=number * 0.1) for number in range(1, 1000)
    ]
    last = array_rounds(1000, ["csd-00"])[-1]
    events = [EventRecord("csd-00", EventKind.REJOINED, "x" * 40, float(number)) for number in range(5000)]
    page = page_of(write_run(tmp_path, [*rounds, last, *events], 36))
    assert len(page.raw) < 1_500_000
    assert "4800 earlier events are not shown" in page.text
    assert "slowest to fastest" in page.text


@pytest.mark.slow
def test_hostile_names_are_text(tmp_path: Path) -> None:
    first, *_ = array_rounds(1, [HOSTILE, "csd-01"])
    event = EventRecord(HOSTILE, EventKind.NOTE, HOSTILE)
    page = page_of(write_run(tmp_path, [event, first], array={"name": HOSTILE}, job={"model": HOSTILE}))
    assert "<script>alert(1)</script>" in page.text
    assert "alert(1)</script>" not in page.raw


# But for what `Page.assert_sound` takes for a mistake of ours.
DRIVE_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(
    lambda name: not re.search(r"\{\{|Undefined|url\(|@import", name)
)


@pytest.mark.slow
@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(DRIVE_NAMES, min_size=1, max_size=4, unique=True),
    st.floats(allow_nan=True, allow_infinity=True),
)
def test_any_name_and_any_loss_make_a_sound_page(tmp_path: Path, names: list[str], loss: float) -> None:
    rounds = array_rounds(2, names, test_loss=loss)
    page_of(write_run(tmp_path, [*rounds, EventRecord(names[0], EventKind.FAILED, names[-1])]))


@pytest.mark.slow
def test_a_failure_of_the_users_code_is_the_first_thing_on_the_page(tmp_path: Path) -> None:
    """Also of a run that was killed before its summary; and whatever the message says is text."""
    failure = Failure(kind="model", device=HOSTILE, round=2, step=7, error=HOSTILE, traceback=f"Traceback\n{HOSTILE}")
    page = page_of(write_run(tmp_path, [*array_rounds(1, NAMES), FailureRecord(failure=failure)]))
    assert page.raw.index("This run failed") < page.raw.index("<h1>")
    assert "the model failed on" in page.text
    assert "in round 2, step 7" in page.text
    assert "<script>alert(1)</script>" in page.text
    assert "alert(1)</script>" not in page.raw


@pytest.mark.slow
def test_a_run_without_failures_has_no_banner(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, array_rounds(1, NAMES)))
    assert "This run failed" not in page.text


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for draw in (draw_chart, draw_timeline):  # each time anew
        monkeypatch.setattr(report_page, draw.__name__, draw)
    write_run(tmp_path, array_rounds(3, NAMES))
    assert write_report(tmp_path, tmp_path / "a.html").rounds == 3
    write_report(tmp_path, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    write_run(tmp_path / "run", NO_ROUND)
    with pytest.raises(EnvironmentUnfit, match="--output"):
        write_report(tmp_path / "run", tmp_path / "absent" / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(EnvironmentUnfit, match="cannot be written"):
        write_report(tmp_path / "run", tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "run"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,350"),
        (0.0, "0"),
        (math.nan, "not a number"),
        (0.01234, "0.01234"),
        (1e-9, "1e-09"),
        (3015, "3,015"),
    ],
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert format_number(value) == text


def test_quantities_for_people() -> None:
    assert [format_seconds(value) for value in (0, 2.5, 0.0123, 4e-5, 3e-8)] == [
        "0 s",
        "2.5 s",
        "12.3 ms",
        "40 µs",
        "30 ns",
    ]
    assert format_quantity(4e-5, "s") == "40 µs"
    assert format_quantity(1e9, "Hz") == "1 GHz"
    assert format_quantity(7.8e-9, "J/B") == "7.8 nJ/B"
    assert format_quantity(0.3, "W") == "0.3 W"
    assert format_quantity(4, "") == "4"
    assert format_share(0.604) == "60.4 %"
    assert format_share(-1.5) == "none: 2.5 times as many"


@pytest.mark.slow
def test_the_health_of_real_drives_is_a_table_where_there_is_any(tmp_path: Path) -> None:
    own, before = IoCounters(1500, 20, 3000, 40), DriveHealth(temperature_celsius=40.0)
    hot = DriveHealth(
        temperature_celsius=75.0, critical_warning=2, throttling=1, media_errors=17, io_of_job=own, power_watts=12.3456
    )
    parts = [
        device_round(name, 10, PhaseSeconds(forward=1.0), health=health)
        for name, health in (("csd-00", hot), ("csd-01", before), ("csd-02", None))
    ]
    assert "own NVMe logs" not in page_of(write_run(tmp_path / "well", NO_ROUND)).text
    text = page_of(write_run(tmp_path / "hot", [round_record(parts)])).text
    for shown in ("75 °C", "level 1", "temperature beyond a threshold", "1,500 (1.5 GB)", "40 °C", "12.35 J"):
        assert shown in text
    assert text.count("unknown") >= 3


def test_what_real_drives_counted_is_named_as_measured(tmp_path: Path) -> None:
    rounds = [
        round_record(
            [
                device_round("csd-00", 10, PhaseSeconds(), health=DriveHealth(io=own, io_of_job=own)),
                device_round("csd-01", 10, PhaseSeconds(), health=DriveHealth()),
            ],
            round=number + 1,
            wall_seconds=10.0,
        )
        for number, own in enumerate([IoCounters(0, 0, 0, 0), IoCounters(30_000, 420, 10_000, 50)])
    ]
    text = page_of(write_run(tmp_path / "real", rounds)).text
    for shown in ("Measured on the drives, not modelled", "3,000", "42", "512.0 MB/s", "2.6 MB/s", "unknown"):
        assert shown in text
