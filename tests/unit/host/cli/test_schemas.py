import json
import runpy
from pathlib import Path

import jsonschema
import msgspec
import pytest

from csd_lab.bench.bench_report import BenchReport
from host.cli import schemas
from host.cli.schemas import FOLDER, list_outputs, schema_files
from tests.support.outputs import checked


def test_the_published_schemas_are_those_of_the_code() -> None:
    published = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert published == schema_files(), "run python -m host.cli.schemas"


@pytest.mark.slow
def test_a_schema_is_one_and_refuses_what_is_not_the_output(subtests: pytest.Subtests) -> None:
    for name in list_outputs():
        with subtests.test(name=name):
            schema = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
            jsonschema.Draft202012Validator.check_schema(schema)
            for wrong in ([], {}, None, {"arrays": 5}):  # type: ignore[var-annotated]
                assert list(jsonschema.Draft202012Validator(schema).iter_errors(wrong))


def test_a_bench_report_has_figures_that_are_numbers_raw_samples_and_the_machine() -> None:
    report = BenchReport("repeatability", "qemu", "counted", 3, {"spread": 0.0007}, {"alone": [2214.8]}, {"cores": 2})
    text = msgspec.json.encode(report).decode()
    assert checked("bench", text)["figures"] == {"spread": 0.0007}
    with pytest.raises(jsonschema.ValidationError):
        checked("bench", text.replace("0.0007", '"small"'))
    with pytest.raises(AssertionError, match="keys"):
        checked("bench", text.replace('"seed"', '"hurry":1,"seed"'))


@pytest.mark.parametrize("module", ["host.cli.schemas", "csd_lab.generate.reference.pages"])
def test_docs_are_written_in_a_clone_alone(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages" / "docs" / "any"
    monkeypatch.setattr(f"{module}.FOLDER", folder)
    with pytest.raises(SystemExit, match="is not in a clone"):
        schemas.main() if module == "host.cli.schemas" else runpy.run_module("csd_lab.generate.reference")
    assert list(tmp_path.iterdir()) == []
