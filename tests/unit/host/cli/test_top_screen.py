import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from csd_emu.util.paths import Paths
from csd_emu.util.process_identity import ProcessMark
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.health.drive_health import DriveHealth
from host.cli.top_report import Readings, ScrapeWindow, TopReport, find_run, make_report, render
from host.core.records import EventKind, EventRecord
from host.monitoring.exporter import Exporter
from host.monitoring.metrics.metrics_state import MetricsState
from host.monitoring.run_facts import RunFacts
from host.monitoring.run_listener import show_round
from host.monitoring.run_registry import LiveRun, announce
from tests.support.commands import in_process
from tests.support.metrics import begun, defined, exposed
from tests.support.outputs import checked
from tests.support.records import device_round, round_record, with_bands
from tests.support.sync_records import Disturbed, SyncRun

RUN = LiveRun("lab", ProcessMark(1, 0, ""), "http://127.0.0.1:9464/metrics", "runs/one")
DRIVES = ("csd-00", "csd-01")


def add_round(
    state: MetricsState, number: int, samples: int, seconds: float, joules: float, banded: bool = False
) -> None:
    parts = [
        device_round(
            device,
            samples,
            PhaseSeconds(forward=seconds),
            energy_joules={"idle": joules},
            peak_memory_bytes=300_000_000,
        )
        for device in DRIVES
    ]
    totals: dict[str, Any] = {"array_seconds": 2 * seconds, "energy_joules": {"host": {"idle": 5 * joules}}}
    record = round_record(parts, round=number, **totals)
    state.add_round(with_bands(record) if banded else record)


def report_of(state: MetricsState) -> TopReport:
    return make_report(RUN, ScrapeWindow(None, Readings(exposed(state))))


def test_a_report_is_that_of_the_records() -> None:
    state = begun(DRIVES)
    add_round(state, 1, 100, 2.0, 30.0)
    add_round(state, 2, 100, 3.0, 20.0)
    report = report_of(state)
    assert (report.round, report.clock, report.accuracy, report.model) == (2, "counted", 0.9, "digits_cnn")
    assert report.array_seconds == 10.0
    assert report.records_per_array_second == 400 / 10.0
    assert report.energy_joules == 7 * 50.0
    assert report.wall_seconds == 18.0
    assert report.host_link_bytes == 4 * 300
    assert [device.device for device in report.devices] == [*DRIVES, "host"]
    first, _, host = report.devices
    assert (first.state, first.clock, first.batch_size, first.memory_bytes) == ("training", "counted", 32, 300_000_000)
    assert first.records_per_device_second == 200 / 5.0
    assert (first.compute_seconds, first.device_seconds) == (5.0, 10.0)
    assert (first.energy_joules, first.power_watts) == (50.0, 5.0)
    assert (host.state, host.records_per_device_second, host.power_watts) == ("", None, 25.0)
    assert checked("top", msgspec.json.encode(report).decode())


@pytest.mark.parametrize("make", [defined, begun])
def test_before_the_first_round_nothing_is_made_up(make: Any) -> None:
    report = report_of(make(DRIVES))
    assert (report.round, report.accuracy, report.records_per_array_second) == (0, None, None)
    assert {device.records_per_device_second for device in report.devices} == {None}
    assert {device.power_watts for device in report.devices} == {None}
    assert checked("top", msgspec.json.encode(report).decode())


def test_a_drive_that_is_gone_is_still_shown() -> None:
    state = begun(DRIVES)
    state.add_event(EventRecord("csd-01", EventKind.LEFT))
    for number in (1, 2, 3):
        state.add_round(round_record([device_round("csd-00", 1, PhaseSeconds(forward=1.0))], round=number))
    gone = next(device for device in report_of(state).devices if device.device == "csd-01")
    assert (gone.state, gone.records_per_device_second) == ("lost", None)


def test_rates_are_those_of_the_last_round_that_was_seen_to_end() -> None:
    state = begun(DRIVES)
    window = ScrapeWindow(None, Readings(exposed(state)))

    def look() -> float | None:
        nonlocal window
        window = window.slide(Readings(exposed(state)))
        return make_report(RUN, window).devices[0].records_per_device_second

    add_round(state, 1, 100, 2.0, 1.0)
    assert look() == 50.0
    assert look() == 50.0
    add_round(state, 2, 100, 4.0, 1.0)
    assert look() == 25.0
    assert look() == 25.0
    add_round(state, 3, 100, 1.0, 1.0)
    add_round(state, 4, 100, 1.0, 1.0)
    assert look() == 100.0


FIGURES = {"records_per_device_second", "compute_seconds", "device_seconds", "power_watts", "energy_joules"}


@given(rounds=st.lists(st.tuples(st.floats(0.01, 1e4), st.floats(0.01, 1e6)), min_size=1, max_size=4))
def test_every_second_watt_and_joule_has_a_band_that_holds_it(rounds: list[tuple[float, float]]) -> None:
    state, window = begun(DRIVES), None
    for number, (seconds, joules) in enumerate(rounds, 1):
        add_round(state, number, 100, seconds, joules, banded=True)
        readings = Readings(exposed(state))
        window = ScrapeWindow(None, readings) if window is None else window.slide(readings)
        report = make_report(RUN, window)
        assert report.bands.keys() == {"array_seconds", "energy_joules", "records_per_array_second"}
        for of, bands in [(report, report.bands), *((device, device.bands) for device in report.devices)]:
            for name, band in bands.items():
                assert band.low * (1 - 1e-9) <= getattr(of, name) <= band.high * (1 + 1e-9)
        assert all(device.bands.keys() == FIGURES for device in report.devices[:-1])
        assert report.devices[-1].bands.keys() == {"device_seconds", "power_watts", "energy_joules"}


def test_elapsed_time_and_watts_of_a_drive_that_came_late_have_no_band_and_a_run_without_has_none() -> None:
    state = begun(DRIVES)
    late = device_round("csd-00", 1, PhaseSeconds(forward=1.0), energy_joules={"idle": 1.0})
    state.add_round(with_bands(round_record([late])))
    add_round(state, 2, 100, 2.0, 30.0, banded=True)
    first, second, _ = report_of(state).devices
    assert {"device_seconds", "power_watts"} <= first.bands.keys()
    assert second.bands.keys() == {"compute_seconds", "energy_joules", "records_per_device_second"}
    add_round(state, 3, 100, 2.0, 30.0)
    report = report_of(state)
    assert [report.bands, *(device.bands for device in report.devices)] == [{}] * 4


def test_one_run_is_found_by_itself_several_by_name() -> None:
    other = LiveRun("other", RUN.process, RUN.address, "runs/two")
    assert find_run([RUN], None) is RUN
    assert find_run([RUN, other], "other") is other
    with pytest.raises(ConfigurationError, match="name an array: lab, other"):
        find_run([RUN, other], None)
    with pytest.raises(EnvironmentUnfit, match="no run is in progress; csd-emu top shows one"):
        find_run([], None)
    with pytest.raises(EnvironmentUnfit, match="no run is in progress on array 'third'"):
        find_run([RUN, other], "third")


@pytest.mark.parametrize("width", [80, 140])
def test_a_synchronous_run_shows_batches_and_slowdowns(width: int) -> None:
    state = MetricsState(RunFacts("lab", "qemu", "digits_cnn", "sync", DRIVES))
    for drive in DRIVES:
        state.add_event(EventRecord(drive, EventKind.JOINED))
    for record in SyncRun(drives=2, steps=100, disturbed=[Disturbed("csd-01", 60, 60, 100)]).make():
        show_round([state], record)
    report = report_of(state)
    assert (report.step, report.global_batch_size, report.retunes) == (100, 32 + 15 + 514, 1)
    first, second, host = report.devices
    assert [device.batch_size for device in (first, second, host)] == [32, 15, 514]
    assert second.slowdown_ratio == pytest.approx(2.0, rel=0.01)
    assert (first.clock, host.clock) == ("counted", "modelled")
    assert checked("top", msgspec.json.encode(report).decode())
    out = io.StringIO()
    Console(file=out, width=width).print(render(report, width, "since the run began"))
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert "…" not in out.getvalue()
    assert "step 100  global batch 561" in out.getvalue()
    (row,) = [line for line in out.getvalue().splitlines() if line.startswith("csd-01")]
    assert row.split()[3:5] == ["15", f"{second.slowdown_ratio:.2f}"]


@pytest.mark.parametrize("width", [80, 140])
def test_the_view_fits_the_terminal_and_names_the_clock_of_each_time(width: int) -> None:
    state = begun(DRIVES)
    add_round(state, 1, 10**6, 2e4, 1e6)
    out = io.StringIO()
    Console(file=out, width=width).print(render(report_of(state), width, "since the run began"))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in out.getvalue()
    assert any("40000.000 s (counted)" in line for line in lines)
    assert any("9.0 s (wall)" in line for line in lines)
    (row,) = [line for line in lines if line.startswith("csd-01")]
    assert row.split()[:4] == ["csd-01", "training", "counted", "32"]
    assert ("300.0 MB" in row) == (width == 140)


@pytest.mark.parametrize(("width", "one_line", "whole"), [(80, False, False), (115, True, False), (170, True, True)])
def test_a_band_stands_behind_its_figure_or_below_it_in_a_narrow_terminal(
    width: int, one_line: bool, whole: bool
) -> None:
    state = begun(DRIVES)
    add_round(state, 1, 1000, 2.0, 300.0, banded=True)
    out = io.StringIO()
    Console(file=out, width=width).print(render(report_of(state), width, "since the run began"))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert ("300.00 (150 to 600)" in text) == one_line
    assert ("2.000 (1 to 4)" in text) == whole
    for part in ("300.00", "(150", "to 600)", "in brackets"):
        assert part in text


@pytest.mark.slow
def test_the_command_shows_a_run_in_progress(
    paths: Paths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    none = in_process(capsys, monkeypatch, "top")
    assert none.code == 2
    assert "no run is in progress" in none.err
    state = begun(DRIVES)
    add_round(state, 1, 100, 2.0, 30.0)
    folder = paths.arrays / "lab"
    folder.mkdir(parents=True)
    with Exporter(state, None) as exporter, announce(folder, LiveRun.of_this_process("lab", exporter.address, Path())):
        done = in_process(capsys, monkeypatch, "top", "--json")
        assert json.loads(done.out)["devices"] == json.loads(msgspec.json.encode(report_of(state)))["devices"]
        assert "csd-01" in in_process(capsys, monkeypatch, "top", "lab", "--once").out
    with announce(folder, LiveRun.of_this_process("lab", exporter.address, Path())):
        silent = in_process(capsys, monkeypatch, "top", "--once")
    assert silent.code == 2
    assert "does not answer" in silent.err


def text_of(report: TopReport) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(render(report, 200, "since the run began"))
    return out.getvalue()


def test_the_health_of_real_drives_has_a_column_where_there_is_any() -> None:
    state = begun(DRIVES)
    add_round(state, 1, 100, 2.0, 30.0)
    report = report_of(state)
    assert [device.health for device in report.devices] == [{}, {}, {}]
    assert "health" not in text_of(report)
    hot = DriveHealth(temperature_celsius=75.0, throttling=2, critical_warning=0, media_errors=17, available_spare=0.08)
    parts = [device_round(DRIVES[0], 1, PhaseSeconds(forward=1.0), health=hot)]
    state.add_round(round_record(parts, round=2))
    report = report_of(state)
    told = {"temperature_celsius": 75.0, "throttling": 2.0, "critical_warning": 0.0, "media_errors": 17.0}
    assert report.devices[0].health == told | {"spare_ratio": 0.08}
    assert "75 °C, throttled, 17 media errors, spare 8%" in text_of(report)
