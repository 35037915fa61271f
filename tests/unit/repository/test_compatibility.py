"""What 0.1.0 wrote is read, and what its readers know is still there (docs/compatibility.md)."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from csd_emu.util.renamed import OLD_FIGURES, Renamed, old_names
from csd_lab.bench.security.fuzz_mutation import example_of
from csd_lab.generate import prometheus_rules as rules
from host.app.gate.gate_baseline import GateBaseline, read_baseline
from host.app.python_api.run_result import RunResult
from host.cli.schemas import CONFIGURATIONS, FOLDER, find_output, list_outputs
from host.core.records import EventRecord, RoundRecord, decode_record
from host.core.summary import decode_summary, summarise
from host.monitoring.metrics.metric_names import METRICS, OLD_NAMES
from host.monitoring.report.load_run import load_run
from tests import ROOT

DATA = ROOT / "tests" / "data"
SCHEMAS, RUNS, BASELINE = DATA / "schemas-0.1.0", DATA / "run-0.1.0", DATA / "ci-baseline-0.1.0.json"


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8")))


def output_of(kind: type[msgspec.Struct]) -> Any:
    """What a command prints: an example of `kind`, with every field given and every list filled."""
    return json.loads(msgspec.json.encode(msgspec.convert(example_of(kind), kind)))


def records(name: str) -> list[Any]:
    return [decode_record(line) for line in (RUNS / name / "records.jsonl").read_bytes().splitlines()]


def test_no_schema_of_a_file_or_an_output_is_gone() -> None:
    assert {path.stem for path in SCHEMAS.glob("*.json")} <= {
        *list_outputs(),
        *(f"{name}.yaml" for name in CONFIGURATIONS),
        "ci-baseline",
    }


@pytest.mark.parametrize("name", [name for name in list_outputs() if (SCHEMAS / f"{name}.json").exists()])
def test_an_output_is_valid_against_its_schema_of_0_1_0(name: str) -> None:
    validator(name).validate(output_of(find_output(name)))


def test_an_output_without_the_old_keys_would_not_be_valid() -> None:
    value = output_of(find_output("run"))
    assert value.pop("images_per_device_second") is not None
    with pytest.raises(jsonschema.ValidationError, match="'images_per_device_second' is a required property"):
        validator("run").validate(value)


def test_outputs_allow_keys_that_a_later_release_adds() -> None:
    names = list_outputs()
    assert {path.stem for path in SCHEMAS.glob("*.json")} & set(names)
    for path in (folder / f"{name}.json" for folder in (SCHEMAS, FOLDER) for name in names):
        assert not path.exists() or "additionalProperties" not in json.loads(path.read_text())
    assert all((FOLDER / f"{name}.json").exists() for name in names)


@pytest.mark.parametrize("kind", Renamed.__subclasses__(), ids=lambda kind: kind.__name__)
def test_an_old_key_has_the_value_of_the_new_one_and_says_that_it_is_deprecated(kind: type[msgspec.Struct]) -> None:
    given = {name: value for name, value in example_of(kind).items() if name not in old_names(kind)}
    value = json.loads(msgspec.json.encode(msgspec.convert(given, kind)))
    properties = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    assert old_names(kind)
    for old, new in old_names(kind).items():
        assert value[old] == value[new]
        assert properties[old]["deprecated"] is True
        assert new in properties[old]["description"]
        assert "deprecated" not in properties[new]


@pytest.mark.parametrize("name", ["federated", "sync"])
def test_records_and_summary_of_0_1_0_are_read(name: str) -> None:
    lines = (RUNS / name / "records.jsonl").read_text(encoding="utf-8").splitlines()
    found = records(name)
    assert sum(isinstance(each, EventRecord) for each in found) == 2
    rounds = [each for each in found if isinstance(each, RoundRecord)]
    assert len(rounds) == 2
    for record, written in zip(rounds, [json.loads(line) for line in lines if '"kind":"round"' in line], strict=True):
        assert (
            record.records_per_device_second == record.images_per_device_second == written["images_per_device_second"]
        )
        possible = [each["possible_images_per_second"] for each in written["steps"]]
        assert [each.possible_records_per_second for each in record.steps] == possible
        # Every key is still there when it is written again.
        again = json.loads(msgspec.json.encode(record))
        for new, old in zip(again["devices"], written["devices"], strict=True):
            assert new.items() >= old.items()
        assert again.items() >= {**written, "steps": again["steps"], "devices": again["devices"]}.items()

    content = (RUNS / name / "summary.json").read_bytes()
    summary, written = decode_summary(content), json.loads(content)
    assert json.loads(msgspec.json.encode(summary)).items() >= written.items()
    facts = {field: written[field] for field in ("array", "engine", "model", "target_accuracy", "reached", "seed")}
    made = summarise(rounds, run_directory=summary.run_directory, wall_seconds=summary.wall_seconds, **facts)
    assert msgspec.structs.replace(made, test_loss=None) == summary  # which had none


def test_a_number_that_json_does_not_have_is_read_from_an_old_record() -> None:
    line = next(line for line in (RUNS / "sync" / "records.jsonl").read_bytes().splitlines() if b'"round"' in line)
    record = decode_record(re.sub(rb'"train_loss":[0-9.]+', b'"train_loss":null', line))
    assert isinstance(record, RoundRecord)
    assert record.train_loss != record.train_loss
    assert record.records_per_device_second > 0


@pytest.mark.parametrize("name", ["federated", "sync"])
def test_a_run_directory_of_0_1_0_is_loaded_for_a_report(name: str) -> None:
    run = load_run(RUNS / name)
    assert len(run.rounds) == 2
    assert run.summary is not None
    assert run.summary.records_per_device_second == pytest.approx(
        json.loads((RUNS / name / "summary.json").read_text())["images_per_device_second"]
    )


def test_a_baseline_of_0_1_0_is_read_with_a_warning_that_names_the_new_figures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        baseline = read_baseline(BASELINE)
    assert baseline.figures.keys() == {"accuracy", *OLD_FIGURES.values()}
    for old, new in OLD_FIGURES.items():
        assert f"{BASELINE}: the figure {old} is called {new} now" in caplog.text
    validator("ci-baseline").validate(msgspec.to_builtins(baseline))
    assert isinstance(baseline, GateBaseline)


def test_figures_that_tests_of_users_ask_for_are_there_under_their_old_names() -> None:
    directory = RUNS / "federated"
    result = RunResult(directory)
    for old, new in OLD_FIGURES.items():
        with pytest.warns(FutureWarning, match=f"{old} is deprecated: use {new}"):
            assert getattr(result, old) == getattr(result, new) > 0


def test_a_metric_of_0_1_0_is_still_known() -> None:
    known = {metric.name for metric in (*METRICS, *OLD_NAMES.values())}
    for path in RUNS.glob("*/metrics.prom"):
        exported = set(re.findall(r"^# TYPE (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert "csd_train_samples_total" in exported
        assert exported <= known


def test_a_recorded_series_of_0_1_0_is_still_recorded() -> None:
    series = {rule.name: rule.expression for rule in rules.RECORDED}
    assert series["device:csd_train_samples_per_calibrated_images:ratio_rate10m"] == rules.OF_CALIBRATION.name


def test_the_old_runs_hold_no_path_of_the_machine_that_wrote_them() -> None:
    for path in (path for path in RUNS.glob("*/*") if path.suffix in {".json", ".jsonl", ".yaml", ".prom"}):
        assert not re.search(r'["\s](/tmp|/home|/root|/work)', path.read_text(encoding="utf-8")), path.name
    assert Path(decode_summary((RUNS / "sync" / "summary.json").read_bytes()).run_directory).parts[0] == "runs"
