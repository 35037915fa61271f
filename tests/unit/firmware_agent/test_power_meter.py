"""What a drive draws by its own sensor: which one is read, and what readings add up to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.power import MEASURED
from csd_emu.profiles import get_profile
from firmware_agent.common.frames.frame_fields import Metered, PhaseSeconds
from firmware_agent.common.frames.session_frames import Trained
from firmware_agent.common.health.drive_health import DriveHealth
from firmware_agent.power_meter import PowerMeter, Sensor, find_sensor, measure
from host.training.accounting import DeviceReport, make_accountant


def chip(folder: Path, number: int, name: str, **files: str) -> Path:
    path = folder / f"hwmon{number}"
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    for file, content in files.items():
        (path / file).write_text(f"{content}\n")
    return path


def test_a_counter_of_energy_goes_before_power_and_an_average_before_a_moment(tmp_path: Path) -> None:
    path = chip(tmp_path, 0, "ina226", energy1_input="5000000", power1_average="7", power1_input="7")
    sensor = find_sensor(tmp_path)
    assert sensor == Sensor(path / "energy1_input", True, "ina226 1")
    (path / "energy1_input").unlink()
    assert find_sensor(tmp_path) == Sensor(path / "power1_average", False, "ina226 1")
    (path / "power1_average").unlink()
    assert find_sensor(tmp_path) == Sensor(path / "power1_input", False, "ina226 1")


def test_of_several_sensors_the_whole_drives_is_taken(tmp_path: Path) -> None:
    chip(tmp_path, 0, "ina", power1_input="1", power1_label="core", power2_input="2", power2_label="dram")
    why = find_sensor(tmp_path)
    assert isinstance(why, str)
    assert why.startswith("several power sensors (ina core, ina dram)")
    path = chip(tmp_path, 1, "pmbus", power1_input="3000000", power1_label="board total")
    assert find_sensor(tmp_path) == Sensor(path / "power1_input", False, "pmbus board total")
    assert Sensor(path / "power1_input", False, "").read() == 3.0


def test_what_cannot_be_read_is_no_sensor(tmp_path: Path) -> None:
    chip(tmp_path, 0, "nvme", temp1_input="30000", power1_input="no number")
    assert find_sensor(tmp_path) == f"no power sensor in {tmp_path}"
    assert find_sensor(tmp_path / "missing") == f"no power sensor in {tmp_path / 'missing'}"


@given(watts=st.floats(0, 1e3), gaps=st.lists(st.floats(1e-3, 10), min_size=1, max_size=20))
def test_even_power_makes_watts_times_seconds_however_it_is_sampled(watts: float, gaps: list[float]) -> None:
    points, moment = [(0.0, watts)], 0.0
    for gap in gaps:
        moment += gap
        points.append((moment, watts))
    metered = measure(points, counts=False)
    assert metered is not None
    assert metered.joules == pytest.approx(watts * moment)
    assert metered.seconds == pytest.approx(moment)


@given(slope=st.floats(0, 10), seconds=st.floats(0.1, 100), cut=st.floats(0.01, 0.99))
def test_rising_power_is_integrated_exactly(slope: float, seconds: float, cut: float) -> None:
    points = [(moment, slope * moment) for moment in (0.0, cut * seconds, seconds)]
    metered = measure(points, counts=False)
    assert metered is not None
    assert metered.joules == pytest.approx(slope * seconds**2 / 2)


def test_a_counter_says_the_difference_and_one_that_was_set_back_nothing() -> None:
    assert measure([(1.0, 5.0), (3.0, 9.0)], counts=True) == Metered(4.0, 2.0)
    assert measure([(1.0, 5.0), (3.0, 2.0)], counts=True) is None
    assert measure([(1.0, 5.0)], counts=True) is None
    assert measure([], counts=False) is None


def test_a_task_is_measured_from_its_begin_to_its_end(tmp_path: Path) -> None:
    path = chip(tmp_path, 0, "ina", energy1_input="1000000") / "energy1_input"
    moments = iter([10.0, 12.5, 20.0, 21.0])
    meter = PowerMeter(Sensor(path, True, "ina 1"), lambda: next(moments))
    meter.begin()
    path.write_text("8500000")
    assert meter.end() == Metered(7.5, 2.5)
    meter.begin()
    path.unlink()
    assert meter.end() is None


def test_a_sensor_of_power_is_read_meanwhile(tmp_path: Path) -> None:
    path = chip(tmp_path, 0, "ina", power1_input="2000000") / "power1_input"
    meter = PowerMeter(Sensor(path, False, "ina 1"))
    meter.begin()
    metered = meter.end()
    assert metered is not None
    assert metered.joules == pytest.approx(2.0 * metered.seconds)


def test_what_was_metered_stands_in_place_of_the_model_and_the_rest_is_idle() -> None:
    groups = [{"profile": "newport", "engine": "native"}]
    config = ArrayConfig.model_validate({"name": "lab", "engine": "native", "devices": groups})
    seconds, idle = PhaseSeconds(forward=2.0), get_profile("newport").power.idle_watts.value

    def energy(clock: str, metered: Metered | None) -> tuple[dict[str, float], float]:
        trained = Trained(1, 64, 2, 0.5, seconds, 10**9, 0, metered)
        done = make_accountant(config).account([DeviceReport("csd-00", clock, trained, 1, 32, 10**6, 10**6)])
        return done.devices[0].energy_joules, done.array_seconds

    joules, elapsed = energy("wall", Metered(30.0, 2.1))
    assert joules == pytest.approx({MEASURED: 30.0, "idle": idle * (elapsed - 2.1)})
    assert MEASURED not in energy("wall", None)[0]
    assert MEASURED not in energy("counted", Metered(30.0, 2.5))[0]  # an emulated drive draws nothing of its own


def test_the_health_of_real_drives_alone_is_written_down() -> None:
    groups = [{"profile": "newport", "engine": "native"}]
    accountant = make_accountant(ArrayConfig.model_validate({"name": "lab", "engine": "native", "devices": groups}))
    health = DriveHealth(temperature_celsius=40.0)
    trained = Trained(1, 64, 2, 0.5, PhaseSeconds(forward=2.0), 10**9, health=health)

    def of(clock: str) -> DriveHealth | None:
        return accountant.account([DeviceReport("csd-00", clock, trained, 1, 32, 10**6, 10**6)]).devices[0].health

    assert of("wall") == health
    assert of("counted") is None
