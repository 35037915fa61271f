"""`csd-emu ci run` on native drives: exit codes, the baseline file, JUnit, and what it refuses before it starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Done, Workshop, in_process
from tests.support.junit import check_junit

JOB: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "rounds": 2}
NO_BANDS = [f"--band={name}=none" for name in ("accuracy", "records_per_device_second", "joules_per_record")]
TINY_NET = """
from torch import nn


def build(num_classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""


class Gate:
    """`csd-emu ci run` in this process, in a workshop of its own."""

    def __init__(self, workshop: Workshop, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.workshop, self._capsys, self._patch = workshop, capsys, patch
        for name, value in workshop.environment.items():
            patch.setenv(name, value)
        self.baseline, self.junit = workshop.folder / "base.json", workshop.folder / "reports" / "out.xml"
        self.job = workshop.write("job.yaml", JOB)

    def __call__(self, *options: str) -> Done:
        return in_process(
            *(self._capsys, self._patch, "ci", "run", self.job, "--array", self.workshop.array),
            *("--baseline", self.baseline, "--runs", self.workshop.runs, "--junit", self.junit, *options),
        )

    def failing(self) -> list[str]:
        """Names of the test cases that failed or could not be judged."""
        root = check_junit(self.junit.read_bytes())
        return [case.get("name", "") for case in root.iter("testcase") if len(case) and case[0].tag != "system-out"]

    def change(self, figure: str, **values: Any) -> None:
        """Change what the baseline expects of a figure."""
        content = json.loads(self.baseline.read_text())
        content["figures"][figure] |= values
        self.baseline.write_text(json.dumps(content))


@pytest.fixture
def gate(workshop: Workshop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(workshop, capsys, monkeypatch)


@pytest.mark.long
def test_a_run_fails_a_baseline_that_expects_more_and_passes_with_a_wider_band(gate: Gate) -> None:
    gate.job = gate.workshop.write("job.yaml", JOB | {"rounds": 1})
    written = gate("--write-baseline")
    assert written.code == 0, written.err
    rate = json.loads(gate.baseline.read_text())["figures"]["records_per_device_second"]["value"]
    gate.change("records_per_device_second", value=rate * 1.02)
    failed = gate("--json")
    assert failed.code == 1, failed.err
    assert not failed.json("ci")["passed"]
    assert gate.failing() == ["records_per_device_second"]
    passed = gate("--band", "records_per_device_second=3%")
    assert passed.code == 0, passed.err + passed.out
    assert gate.failing() == []
    gate.workshop.assert_clean()


@pytest.mark.long
def test_a_strategy_that_was_changed_is_named_and_one_that_ends_the_program_does_not_pass(gate: Gate) -> None:
    source = "from host.policies.aggregation import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
    gate.workshop.write("mine.py", source)
    gate.job = gate.workshop.write("job.yaml", JOB | {"rounds": 1, "strategy": "mine.py:Mine"})
    assert gate("--write-baseline").code == 0
    gate.workshop.write("mine.py", source.replace("pass", "changed = True"))
    (change,) = gate("--json").json("ci")["changed"]
    assert change.startswith("strategy code sha256: ")
    gate.workshop.write("mine.py", source.replace("pass", "def aggregate(self, weights, parts): raise SystemExit(0)"))
    done = gate()
    assert done.code == 1
    assert "the strategy failed on host in round 1: SystemExit: 0" in done.err
    assert gate.failing() == ["run"]


@pytest.mark.long
def test_a_run_passes_its_own_baseline_and_fails_one_that_expects_more(gate: Gate) -> None:
    missing = gate()
    assert missing.code == 2
    assert "--write-baseline" in missing.err
    assert gate.failing() == ["run"]
    assert not gate.workshop.runs.exists(), "it was refused before it started"

    written = gate("--write-baseline", "--json")
    assert written.code == 0, written.err
    assert written.json("ci")["written"]
    assert "nothing would be compared" in gate(*NO_BANDS).err
    assert gate("--write-baseline").code == 2, "one that is there is not replaced by accident"

    passed = gate()
    assert passed.code == 0, passed.err + passed.out
    assert gate.failing() == []
    assert "passed" in passed.out

    rate = json.loads(gate.baseline.read_text())["figures"]["records_per_device_second"]["value"]
    for factor, verdict in ((1.02, "worse"), (0.98, "better"), (1.005, "within")):
        gate.change("records_per_device_second", value=rate * factor)
        done = gate("--json")
        figures = {figure["figure"]: figure for figure in done.json("ci")["figures"]}
        assert figures["records_per_device_second"]["verdict"] == verdict
        assert done.code == (verdict != "within")
        assert gate.failing() == ([] if verdict == "within" else ["records_per_device_second"])
    gate.change("records_per_device_second", value=rate * 1.02)
    assert gate("--band", "records_per_device_second=3%").code == 0
    said = gate()
    assert "records_per_device_second is worse: find what made it worse" in said.out
    assert "--update-baseline" in said.out
    gate.workshop.assert_clean()


@pytest.mark.long
def test_updating_keeps_bands_and_a_figure_that_was_left_out_stays_out(gate: Gate) -> None:
    assert gate("--write-baseline", "--band", "accuracy=5%", "--band", "joules_per_record=none").code == 0
    gate.job = gate.workshop.write("job.yaml", JOB | {"rounds": 1})
    refused = gate()
    assert refused.code == 2
    assert "job.rounds: 2 there, 1 here" in refused.err
    assert gate.failing() == ["run"]
    updated = gate("--update-baseline", "--json")
    assert updated.code == 0
    figures = {figure["figure"]: figure["band"] for figure in updated.json("ci")["figures"]}
    assert figures == {"accuracy": 0.05, "records_per_device_second": 0.01}
    assert gate().code == 0
    assert gate("--band", "joules_per_record=1%").code == 2
    gate.baseline.write_text("{")
    assert gate().code == 2
    assert gate("--update-baseline").code == 0


@pytest.mark.long
def test_a_missed_target_fails_and_says_so(gate: Gate) -> None:
    gate.job = gate.workshop.write("job.yaml", JOB | {"rounds": 1, "target": {"accuracy": 1.0}})
    assert gate("--write-baseline").code == 1
    done = gate()
    assert done.code == 1
    assert gate.failing() == ["target"]
    assert "target 1.0 was missed" in done.out


@pytest.mark.long
def test_wall_time_is_refused_before_anything_starts_unless_it_has_a_band(gate: Gate) -> None:
    """A net of one's own has no calibration table, so native drives measure it in wall time."""
    gate.workshop.write("tiny_net.py", TINY_NET)
    gate.job = gate.workshop.write("job.yaml", JOB | {"model": "tiny_net.py:build", "rounds": 1})
    refused = gate("--write-baseline")
    assert refused.code == 2
    assert "wall time (clock: wall)" in refused.err
    assert not gate.workshop.runs.exists()
    bands = ("--band", "records_per_device_second=900%", "--band", "joules_per_record=none")
    assert gate("--write-baseline", *bands).code == 0
    figures = json.loads(gate.baseline.read_text())["figures"]
    assert {name: figure["clock"] for name, figure in figures.items()} == {
        "accuracy": "none",
        "records_per_device_second": "wall",
    }

    gate.workshop.write("tiny_net.py", TINY_NET.replace("nn.Flatten()", "nn.Flatten(), nn.Dropout(0.9)"))
    changed = gate("--json")
    assert changed.code == 1, "the net is what the gate is for, so a baseline of another source can be compared with"
    (accuracy, _) = changed.json("ci")["figures"]
    assert accuracy["verdict"] == "worse"
    assert any("model source sha256" in change for change in changed.json("ci")["changed"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--write-baseline", "--update-baseline"), "not both"),
        (("--band", "speed=1%"), "the figures are accuracy"),
        (("--write-baseline", *NO_BANDS), "nothing would be compared"),
        (("--write-baseline", "--baseline", "missing/base.json"), "the baseline cannot be written"),
        (("--engine", "qemu"), "--write-baseline"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_an_old_junit_file_does_not_survive(
    gate: Gate, options: tuple[str, ...], why: str
) -> None:
    gate.junit.parent.mkdir()
    gate.junit.write_text("<testsuites/>")
    done = gate(*options)
    assert done.code == 2
    assert why in done.err
    assert gate.failing() == ["run"]
    assert not gate.workshop.runs.exists()


def test_a_run_that_fails_is_an_error_in_junit(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate("--write-baseline").code == 0
    monkeypatch.setattr("host.app.run_job.check_port", fail)
    done = gate()
    assert done.code == 2
    assert gate.failing() == ["run"]
    assert "port 1 is taken" in done.err
    root = check_junit(gate.junit.read_bytes())
    (error,) = root.iter("error")
    assert "port 1 is taken" in str(error.get("message"))


def fail(*_: Any) -> None:
    from firmware_agent.common.errors import EnvironmentUnfit

    raise EnvironmentUnfit("port 1 is taken; free it")


def test_the_key_of_the_image_is_one_word(gate: Gate, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        done = in_process(capsys, patch, "image", "key")
    assert done.code == 0
    assert len(done.out.split()) == 1
    assert int(done.out, 16)
