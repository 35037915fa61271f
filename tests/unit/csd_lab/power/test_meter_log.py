from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from csd_emu.profiles import PROFILES, get_profile
from csd_emu.profiles.profile_files import read_profile
from csd_emu.util.paths import HOME_VARIABLE, Paths
from csd_lab.power.meter_log import LEAST_ROWS, Sample, fit_power, fitted_profile, read_log
from csd_lab.power.power_fit import fit_log
from firmware_agent.common.errors import ConfigurationError
from host.cli.main import app
from host.cli.profiles_report import report_profiles
from tests.support.outputs import checked

HEADER = "seconds,utilisation,watts"
uses = st.lists(st.floats(0, 1), min_size=LEAST_ROWS, max_size=60).map(lambda values: [0.0, 1.0, *values])
watts = st.floats(0, 500)


def lines(use: list[float], idle: float, active: float) -> list[str]:
    return [f"{number},{share!r},{idle + active * share!r}" for number, share in enumerate(use)]


def write(folder: Path, rows: list[str], header: str = HEADER) -> Path:
    path = folder / "log.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


GOOD = lines([n % 5 / 4 for n in range(20)], 6.0, 2.0)


@given(use=uses, idle=watts, active=watts)
def test_a_log_that_follows_the_model_gives_its_watts(use: list[float], idle: float, active: float) -> None:
    samples = [Sample(number + 2, number, share, idle + active * share) for number, share in enumerate(use)]
    fit = fit_power(samples)
    assert fit.idle_watts == pytest.approx(idle, abs=1e-6)
    assert fit.active_watts == pytest.approx(active, abs=1e-6)
    assert fit.residual_watts == pytest.approx(0, abs=1e-6)
    assert (fit.samples, fit.seconds) == (len(use), len(use) - 1)


@given(use=uses, noise=st.floats(0.01, 1), factor=st.floats(1, 10))
def test_noise_shows_in_the_residual_and_in_the_standard_errors(use: list[float], noise: float, factor: float) -> None:
    def fit(size: float) -> tuple[float, float, float]:
        flips = [size if number % 2 else -size for number in range(len(use))]
        samples = [
            Sample(0, n, share, 600 + 50 * share + flip) for n, (share, flip) in enumerate(zip(use, flips, strict=True))
        ]
        found = fit_power(samples)
        return found.residual_watts, found.idle_standard_error_watts, found.active_standard_error_watts

    small, large = fit(noise), fit(noise * factor)
    assert all(value > 0 for value in small)
    assert large == pytest.approx([value * factor for value in small], rel=1e-6)


def test_standard_errors_are_those_of_ordinary_least_squares() -> None:
    # By hand: x = 0, 1 in turn, y = 1, 4, 3, 4 repeated: idle 2, active 2, residuals -1, 0, 1, 0.
    values = [(0.0, 1.0), (1.0, 4.0), (0.0, 3.0), (1.0, 4.0)] * 3
    fit = fit_power([Sample(0, n, use, value) for n, (use, value) in enumerate(values)])
    assert (fit.idle_watts, fit.active_watts) == pytest.approx((2, 2))
    assert fit.residual_watts == pytest.approx((6 / 10) ** 0.5)
    assert fit.active_standard_error_watts == pytest.approx((0.6 / 3) ** 0.5)
    assert fit.idle_standard_error_watts == pytest.approx((0.6 * (1 / 12 + 0.25 / 3)) ** 0.5)


def test_a_bad_line_is_named_with_its_number(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for line, row, words in [
        (7, "5,nan,6", "line 7: .* not finite"),
        (7, "5,0.5,inf", "line 7: .* not finite"),
        (7, "5,1.2,6", r"line 7: utilisation is 1\.2"),
        (7, "5,-0.1,6", r"line 7: utilisation is -0\.1"),
        (7, "5,0.5,-6", "line 7: watts are -6"),
        (7, "5,half,6", "line 7: .* not three numbers"),
        (7, "5,0.5", "line 7: has 2 columns"),
        (7, "3,0.5,6", "line 7: time goes from 4 s to 3 s"),
        (7, "4,0.5,6", "line 7: time goes from 4 s to 4 s"),
        (21, "30,0.5,6", "line 21: a gap of 12 s, where 1 s is usual"),
    ]:
        with subtests.test(line=line, row=row, words=words):
            rows = list(GOOD)
            rows[line - 2] = row
            with pytest.raises(ConfigurationError, match=words):
                read_log(write(tmp_path, rows))


def test_logs_that_say_too_little_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has 9 rows; record at least 10"):
        read_log(write(tmp_path, GOOD[:9]))
    with pytest.raises(ConfigurationError, match="line 1: the header is 's,u,w'"):
        read_log(write(tmp_path, GOOD, "s,u,w"))
    with pytest.raises(ConfigurationError, match="line 1: the header is ''"):
        read_log(write(tmp_path, [], ""))
    with pytest.raises(ConfigurationError, match=r"spans less than 0\.2"):
        fit_power(read_log(write(tmp_path, lines([0.5 + n / 200 for n in range(20)], 6, 2))))
    with pytest.raises(ConfigurationError, match="which no machine has"):
        fit_power(read_log(write(tmp_path, [f"{n},{n % 2},{9 - 5 * (n % 2)}" for n in range(20)])))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_log(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_log(tmp_path / "binary.csv")


def test_a_good_log_is_read_with_its_lines(tmp_path: Path) -> None:
    assert read_log(write(tmp_path, GOOD))[3] == Sample(5, 3.0, 0.75, 7.5)


def test_a_fitted_profile_is_the_base_with_the_meters_watts(tmp_path: Path) -> None:
    base = get_profile("newport")
    fit = fit_power(read_log(write(tmp_path, GOOD)))
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(fitted_profile(base, fit, "log.csv")), encoding="utf-8")
    mine = read_profile(path, "mine")
    assert mine.power.idle_watts.value == pytest.approx(6)
    assert mine.power.core_watts.value * base.cores.value == pytest.approx(2)
    assert mine.power.dram_watts.value == 0
    assert mine.power.idle_watts.source.startswith("fitted: meter log log.csv, 20 rows in 19 s")
    assert replace(mine, name="newport", power=base.power) == base


def test_fitting_writes_a_profile_once_and_never_over_another(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "cache", tmp_path / "state", tmp_path / "run")
    log = write(tmp_path, GOOD)
    report = fit_log(log, "newport", "my-drive", paths)
    assert report.active_watts == pytest.approx(2)
    assert [entry.name for entry in report_profiles(None, paths).profiles][-1] == "my-drive"
    figures = {figure.figure: figure for figure in report_profiles("my-drive", paths).profiles[0].figures}
    assert not figures["power.idle_watts"].assumed
    assert figures["link_bytes_per_second"].assumed
    before = Path(report.path).read_text(encoding="utf-8")
    for name, words in (("my-drive", "already"), ("newport", "built-in"), ("My Drive", "lower-case")):
        with pytest.raises(ConfigurationError, match=words):
            fit_log(log, "newport", name, paths)
    with pytest.raises(ConfigurationError, match="not known"):
        fit_log(log, "nothing", "other", paths)
    assert Path(report.path).read_text(encoding="utf-8") == before
    assert len(list(paths.profiles.iterdir())) == 1


@pytest.mark.slow
def test_the_commands_print_what_their_schemas_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    log, run = write(tmp_path, GOOD), CliRunner().invoke
    fitted = run(app, ["power", "fit", str(log), "--profile", "newport", "--name", "my-drive", "--json"])
    assert checked("power", fitted.stdout)["idle_watts"] == pytest.approx(6)
    shown = checked("profiles", run(app, ["profiles", "--json"]).stdout)
    assert [profile["name"] for profile in shown["profiles"]] == [*PROFILES, "my-drive"]
    assert "my-drive: 20 of 24 figures are assumed" in run(app, ["profiles", "my-drive"]).stdout
    again = run(app, ["power", "fit", str(log), "--profile", "my-drive", "--name", "second"])
    assert "idle   6.000 W, standard error" in again.stdout


@given(noise=st.floats(0.001, 0.02), fast=st.floats(2.0, 4.0))
def test_a_log_with_a_governor_leaves_far_more_than_the_meters_noise(noise: float, fast: float) -> None:
    """A line cannot say that cores draw `fast` times as much each once most of them are busy."""
    rng = np.random.default_rng(3)
    use = np.repeat([0.0, 1.0, 0.25, 0.75, 0.5], 60)
    residuals = []
    for factor in (1.0, fast):
        watts = 0.4 + 0.5 * use * np.where(use > 0.6, factor, 1.0) + rng.normal(0.0, noise, len(use))
        rows = [Sample(n, float(n), float(u), float(w)) for n, (u, w) in enumerate(zip(use, watts, strict=True))]
        residuals.append(fit_power(rows).residual_watts)
    assert residuals[0] == pytest.approx(noise, rel=0.2)
    assert residuals[1] > 2 * residuals[0]
