"""Keys in place of files', and runs side by side, on the command line."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import Done, Workshop

PAINTED = True  # charts

Command = Callable[..., Done]

ARRAY = {"name": "lab", "engine": "native", "devices": [{"profile": "newport", "count": 2}]}


def test_variations_need_no_edited_files(workshop: Workshop, csd_emu: Command) -> None:
    job = workshop.write("small.yaml", {"model": "digits_cnn", "data": {"source": "digits"}, "batch_size": 64})
    workshop.array.unlink()
    told = csd_emu("run", job, "--runs", workshop.runs)
    assert (told.code, "on which drives? There is no" in told.err) == (2, True)
    keys = ["--runs", workshop.runs, "--set", "rounds=1", "--set", "data.partition.dirichlet=0.7"]
    alone = csd_emu("run", job, *keys, "--drives", "3", "--engine", "native", "--seed", "3", "--json").json("run")
    assert (len(alone["device_seconds"]), alone["seed"]) == (3, 3)
    workshop.write("array.yaml", ARRAY)
    beside = csd_emu("run", job, *keys, "--name", "beside", "--json").json("run")
    assert (len(beside["device_seconds"]), Path(beside["run_directory"]).name.partition("-beside")[1]) == (2, "-beside")
    wide = csd_emu("run", job, *keys, "--drives", "4", "--profile", "solana", "--name", "wide", "--json").json("run")
    assert len(wide["device_seconds"]) == 4
    for wrong, said in (
        (("--set", "roundz=1"), "did you mean 'rounds'"),
        (("--set", "rounds=two"), "rounds: must be a whole number"),
        (("--seed", "1", "--set", "seed=2"), "seed: one setting is given twice"),
        (("--name", "a/b"), "name:"),
        (("--resume", workshop.runs), "--resume takes job and array from DIR"),
    ):
        told = csd_emu("run", job, *wrong)
        assert (told.code, said in told.err) == (2, True), told.err
    listed = csd_emu("runs", "--runs", workshop.runs, "--json").json("runs")["runs"]
    assert [row["name"] for row in listed] == ["small", "beside", "wide"]
    assert {row["state"] for row in listed} == {"finished"}
    page = workshop.folder / "compared.html"
    compared = csd_emu("compare", "beside", "wide", "--runs", workshop.runs, "--output", page, "--json").json("compare")
    assert compared["names"] == ["beside", "wide"]
    assert "array.devices" in compared["configuration"]
    assert "<svg" in page.read_text(encoding="utf-8")
    page = workshop.folder / "reported.html"
    csd_emu("report", beside["run_directory"], "--compare", wide["run_directory"], "--output", page)
    assert "<svg" in page.read_text(encoding="utf-8")
    tables = csd_emu("runs", "--runs", workshop.runs, "export", "wide", "--output", workshop.folder / "tables")
    assert "rounds.csv" in tables.out
    assert csd_emu("runs", "--runs", workshop.runs, "rm", "wide").code == 0
    assert len(csd_emu("runs", "--runs", workshop.runs, "--json").json("runs")["runs"]) == 2


def test_a_sweep_goes_on_and_its_old_namesake_is_hinted_at(workshop: Workshop) -> None:
    job = workshop.write("small.yaml", {"model": "digits_cnn", "data": {"source": "digits"}, "rounds": 1})
    workshop.write("array.yaml", ARRAY)
    command = ["sweep", job, "--over", "batch_size=64,128", "--runs", workshop.runs, "--json"]
    swept = workshop.run(*command).json("swept")
    again = workshop.run(*command).json("swept")
    assert again == swept
    assert [run["point"] for run in swept["runs"]] == [{"batch_size": 64, "seed": 0}, {"batch_size": 128, "seed": 0}]
    assert len(swept["points"]) == 2
    old = workshop.run("sweep", "no-such-array", "--json")
    assert "is called csd-emu clean now" in old.err
    assert old.json("clean")["ended"] == {"no-such-array": []}


@pytest.mark.long
def test_each_run_of_a_sweep_is_a_task_of_a_cluster(workshop: Workshop) -> None:
    pytest.importorskip("submitit")
    job = workshop.write("small.yaml", {"model": "digits_cnn", "data": {"source": "digits"}, "rounds": 1})
    workshop.write("array.yaml", ARRAY)
    command = ["sweep", job, "--over", "batch_size=64,128", "--cluster", "local", "--max-parallel", "2"]
    swept = workshop.run(*command, "--runs", workshop.runs, "--json").json("swept")
    assert [run["point"] for run in swept["runs"]] == [{"batch_size": 64, "seed": 0}, {"batch_size": 128, "seed": 0}]
    assert [run["error"] for run in swept["runs"]] == ["", ""]
    assert len(list((workshop.runs / "tasks").glob("*_log.out"))) == 2
    broken = [*command[:3], "learning_rate=100", *command[4:], "--set", "model_arguments.num_classes=1"]
    failed = workshop.run(*broken, "--runs", workshop.folder / "broken", "--json")
    assert failed.code == 1
    assert failed.json("swept")["runs"][0]["error"]


def test_a_cluster_that_there_is_not_is_refused(workshop: Workshop, csd_emu: Command) -> None:
    pytest.importorskip("submitit")
    job = workshop.write("small.yaml", {"model": "digits_cnn", "data": {"source": "digits"}, "rounds": 1})
    for wrong in (["--cluster", "lokal"], ["--cluster", "local", "--cluster-option", "timeout=1"]):
        told = csd_emu("sweep", job, "--over", "batch_size=64", *wrong, "--runs", workshop.runs)
        assert (told.code, "sweep: cluster" in told.err) == (2, True), told.err


def test_a_job_is_checked_with_the_array_beside_it(workshop: Workshop, csd_emu: Command) -> None:
    job = workshop.write("small.yaml", {"model": "digits_cnn", "data": {"source": "digits"}})
    array = workshop.write("array.yaml", ARRAY)
    for arguments in ((job,), (array,), (job, "--array", array), (array, "--job", job)):
        report = csd_emu("validate", *arguments, "--json").json("validate")
        assert report["array"]["name"] == "lab"
        assert (report["job"] is None) == (arguments == (array,))
    for wrong in ("nothere.yaml", workshop.write("netless.yaml", {"net": "digits_cnn", "data": {"source": "digits"}})):
        told = csd_emu("validate", wrong, "--array", array)
        assert told.code == 2, told.out
    assert "it is called model here" in told.err
    told = csd_emu("run", array, "--array", job)
    assert (told.code, "are two files swapped?" in told.err) == (2, True)


def test_the_page_is_opened_in_a_browser(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    opener = workshop.write("xdg-open", f'#!/bin/sh\necho "$1" >> {workshop.folder}/opened\n')
    opener.chmod(0o755)
    monkeypatch.setenv("PATH", f"{workshop.folder}:{os.environ['PATH']}")
    job = workshop.write("small.yaml", {"model": "digits_cnn", "data": {"source": "digits"}, "rounds": 1})
    done = workshop.run("run", job, "--drives", "2", "--engine", "native", "--runs", workshop.runs, "--open")
    assert done.code == 0
    assert (workshop.folder / "opened").read_text(encoding="utf-8").strip() in done.out


def test_versions_and_what_this_machine_can_run(csd_emu: Command) -> None:
    from firmware_agent import __version__

    assert csd_emu("--version").out == f"csd-emu {__version__}\n"
    report = csd_emu("doctor", "--json").json("doctor")
    facts = {fact["name"]: fact for fact in report["facts"]}
    assert report["native"] is True
    assert facts["Python"]["found"] == ".".join(map(str, sys.version_info[:3]))
    assert all(fact["found"] or fact["remedy"] for fact in facts.values())
