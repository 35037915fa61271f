"""Bands of simulated runs, of one array and of several servers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import pytest

from csd_emu.profiles import Profile
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.progress import Silent
from csd_lab.cli.simulate import print_servers_simulation, print_simulation
from csd_lab.simulate.simulation_figures import (
    SimulatedRun,
    SimulatedTree,
    SimulateReport,
    SimulateServersReport,
)
from csd_lab.simulate.simulation_report import report_simulation
from csd_lab.simulate.simulation_request import read_simulation
from firmware_agent.common.errors import ConfigurationError
from host.core.console import console

EXAMPLES = Path(__file__).parents[4] / "examples"


def simulated(servers: bool) -> SimulateReport | SimulateServersReport:
    folder = EXAMPLES / ("servers" if servers else "hypertune")
    array, hall = (None, folder / "servers.yaml") if servers else (folder / "array.yaml", None)
    request = read_simulation(folder / "job.yaml", array, hall, tuner=None, drives=None, steps=8)
    return report_simulation(request, CalibrationStore(Path("/nonexistent")), Silent())


def value(run: SimulatedRun | SimulatedTree, name: str) -> float:
    return float(run.step_seconds[1] if name == "step_seconds" else attrgetter(name)(run))


def shown(report: SimulateReport | SimulateServersReport) -> str:
    with console.capture() as capture:
        if isinstance(report, SimulateReport):
            print_simulation(report)
        else:
            print_servers_simulation(report)
    return capture.get()


@pytest.mark.parametrize("servers", [False, True])
def test_the_middle_run_has_bands_that_hold_its_figures(servers: bool) -> None:
    runs: Sequence[SimulatedRun | SimulatedTree] = simulated(servers).runs
    *others, middle = sorted(runs, key=lambda run: bool(run.bands))
    assert all(not run.bands for run in others)
    for name in ("array_seconds", "records_per_second", "joules_per_record", "step_seconds"):
        assert middle.bands[name].low < value(middle, name) < middle.bands[name].high
    for name, band in middle.bands.items():
        assert band.low <= value(middle, name) <= band.high, name
    of_kind = "seconds.drive_link" if servers else "baseline.joules_per_record"
    assert middle.bands[of_kind].low < middle.bands[of_kind].high


def test_parts_that_rest_on_no_profile_have_no_band_and_the_others_add_up() -> None:
    (run,) = simulated(servers=True).runs
    for part in ("host", "server_link", "rack_uplink", "hops", "failures"):
        band = run.bands[f"seconds.{part}"]
        assert band.low == band.high
    for end in ("low", "high"):
        parts = sum(getattr(band, end) for name, band in run.bands.items() if name.startswith("seconds."))
        assert parts == pytest.approx(getattr(run.bands["array_seconds"], end))


@pytest.mark.parametrize("servers", [False, True])
def test_exact_profiles_leave_points_which_stand_alone(servers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert " to " in shown(simulated(servers))
    monkeypatch.setattr(Profile, "at", lambda self, _: self)
    report = simulated(servers)
    for run in report.runs:
        assert all(band.low == band.high for band in run.bands.values())
    assert "(" not in shown(report).split("in brackets")[0].split("(simulated)")[1]


def test_host_io_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "{model: digits_cnn, data: {source: digits}, mode: sync, host_io: {loads: [{iops: 5}]}}"
    )
    with pytest.raises(ConfigurationError, match="host_io: a simulation knows no commands of the host; leave host_io"):
        read_simulation(tmp_path / "job.yaml", EXAMPLES / "hypertune" / "array.yaml", None, None, None, 8)
