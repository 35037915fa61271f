"""Prometheus' configuration, held against Prometheus' own promtool."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from csd_lab.generate import prometheus_rules as rules
from tests.support.machines import REQUIRE_VARIABLE

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "images" / "prometheus"
TESTS = ROOT / "tests" / "prometheus" / "alerts.test.yml"


def promtool(*arguments: str | Path) -> tuple[int, str]:
    program = shutil.which("promtool")
    if program is None and os.environ.get(REQUIRE_VARIABLE) != "1":
        pytest.skip("Prometheus is not installed; make setup-dev installs it")
    assert program, "promtool is not installed; sudo apt-get install prometheus, or make setup-dev"
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("path", rules.files(), ids=lambda path: path.name)
def test_the_shipped_rules_are_those_of_the_code(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == rules.files()[path], "run python -m csd_lab.generate.metrics_files"


def test_the_configuration_is_valid() -> None:
    code, text = promtool("check", "config", CONFIGURATION / "prometheus.yml")
    assert code == 0, text
    assert f"{len(rules.RECORDED)} rules found" in text
    assert f"{len(rules.ALERTS)} rules found" in text


def test_alerts_fire_when_they_should_and_only_then() -> None:
    code, text = promtool("test", "rules", TESTS)
    assert code == 0, text


ANY_TRAINS = ' and on (job, instance) csd_device_state{state="training"} == 1'


@pytest.mark.long
@pytest.mark.parametrize(
    ("alert", "right", "wrong"),
    [
        ("CsdDriveLost", "== 1", "== 2"),  # never
        ("CsdUpdatesRefused", f"or 0 * {rules.REFUSED}", ""),  # not the first time
        ("CsdUpdatesRefused", ANY_TRAINS, ""),
        ("CsdStraggler", ANY_TRAINS, ""),  # also when nobody trains any more
        ("CsdThroughputBelowCalibration", "< 0.8", "< 0.95"),  # too early
        ("CsdThroughputBelowCalibration", ANY_TRAINS, ""),
        ("CsdPowerCapExceeded", "> on", "< on"),
        ("CsdPowerCapExceeded", ANY_TRAINS, ""),
        ("CsdHostUnreachable", "== 0 and on (job, instance) max", "== 0 unless on (job, instance) max"),  # regular ends
        ("CsdServerLost", "csd_servers <", "csd_servers <="),  # when all are there
        ("CsdServerLost", ANY_TRAINS, ""),
        ("CsdServerUnreachable", " and on (job) csd_servers_expected", ""),  # when nobody trains together
        ("CsdServerUnreachable", ' and on (job) csd_device_state{state="training"} == 1', ""),
        ("CsdServerUnreachable", ', server!=""', ""),  # not of a list
    ],
)
def test_a_wrong_alert_is_noticed(tmp_path: Path, alert: str, right: str, wrong: str) -> None:
    shipped = yaml.safe_load(rules.alerts_yaml())
    (changed,) = [rule for rule in shipped["groups"][0]["rules"] if rule["alert"] == alert]
    assert right in changed["expr"]
    changed["expr"] = changed["expr"].replace(right, wrong)
    folder, tests = tmp_path / "images" / "prometheus" / "rules", tmp_path / "tests" / "prometheus"
    folder.mkdir(parents=True)
    tests.mkdir(parents=True)
    (folder / "recording.yml").write_text(rules.recording_yaml())
    (folder / "alerts.yml").write_text(yaml.safe_dump(shipped))
    code, text = promtool("test", "rules", shutil.copy(TESTS, tests))
    assert code != 0
    assert alert in text


def fired_in_tests() -> set[str]:
    """The alerts that a case of alerts.test.yml expects to fire."""
    fired = set()
    for case in yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]:
        fired |= {each["alertname"] for each in case.get("alert_rule_test", ()) if each["exp_alerts"]}
        for each in case.get("promql_expr_test", ()):
            if each["exp_samples"] and 'alertstate="firing"' in each["expr"]:
                fired |= set(re.findall(r'alertname="(\w+)"', each["expr"]))
    return fired


def test_every_alert_fires_in_a_test_and_has_a_runbook() -> None:
    assert fired_in_tests() == {alert.name for alert in rules.ALERTS}
    sections = re.split(r"^## ", (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    written = {section.partition("\n")[0]: section for section in sections}
    assert list(written) == [alert.name for alert in rules.ALERTS]
    for alert in rules.ALERTS:
        assert alert.severity in {"warning", "critical"}
        assert alert.runbook == f"docs/alerts.md#{alert.name.lower()}"
        for part in ("**Means:**", "**Look:**", "**Do:**"):
            assert part in written[alert.name], (alert.name, part)
