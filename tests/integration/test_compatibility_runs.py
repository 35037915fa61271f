"""Run directories that 0.1.0 wrote are reported, and go on (docs/compatibility.md)."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.commands import Done, Workshop
from tests.support.pages import Page

PAINTED = True  # charts

RUNS = ROOT / "tests" / "data" / "run-0.1.0"


def copied(workshop: Workshop, name: str) -> Path:
    return shutil.copytree(RUNS / name, workshop.runs / name)


@pytest.mark.parametrize(("name", "words"), [("federated", "Finished after 2 rounds"), ("sync", "6 steps")])
def test_a_run_of_0_1_0_is_reported(workshop: Workshop, csd_emu: Callable[..., Done], name: str, words: str) -> None:
    directory = copied(workshop, name)
    done = csd_emu("report", directory, "--json")
    assert done.code == 0, done.err
    report = done.json("report")
    assert (report["finished"], report["rounds"]) == (True, 2)
    page = Page((directory / "report.html").read_text(encoding="utf-8"))
    page.assert_sound()
    assert words in page.text
    assert "records per array second" in page.text
    assert "images per" not in page.text


def test_a_federated_run_of_0_1_0_that_stopped_early_is_resumed(
    workshop: Workshop, csd_emu: Callable[..., Done]
) -> None:
    directory = copied(workshop, "federated")
    (directory / "summary.json").unlink()
    job = directory / "job.yaml"
    job.write_text(job.read_text(encoding="utf-8").replace("rounds: 2", "rounds: 3"), encoding="utf-8")
    done = csd_emu("run", "--resume", directory, "--json")
    assert done.code == 0, done.err
    summary = done.json("run")
    assert summary["rounds"] == 3
    assert summary["records_per_device_second"] == summary["images_per_device_second"] > 0
    lines = [json.loads(line) for line in (directory / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    rounds = [line for line in lines if line["kind"] == "round"]
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert rounds[0].keys() <= rounds[2].keys()
    assert "records_per_device_second" in rounds[2]
    # The figures are those of all three rounds, of which two were written under the old names.
    seconds = sum(sum(part["device_seconds"].values()) for line in rounds for part in line["devices"])
    samples = sum(part["samples"] for line in rounds for part in line["devices"])
    assert summary["records_per_device_second"] == pytest.approx(samples / seconds)
    workshop.assert_clean()
