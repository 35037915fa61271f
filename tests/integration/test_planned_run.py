"""Runs on the native engine whose devices are chosen in their first steps, and `csd-emu plan --prefer`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import Done, Workshop, meanwhile, temporary_workshop, wait_until

Command = Callable[..., Done]
EXAMPLE = Path(__file__).parents[2] / "examples" / "planner"
# Two kinds of drives at equal batches: the slow ones cost more than they bring.
ARRAY: dict[str, Any] = {
    "name": "lab",
    "engine": "native",
    "link": {"bandwidth": "100 MB/s"},
    "devices": [{"profile": "newport", "count": 2}, {"profile": "generic-a53", "count": 1}],
}
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits"},
    "mode": "sync",
    "tuner": "none",
    "batch_size": 32,
    "learning_rate": 0.1,
    "sync": {"round_steps": 10},
    "rounds": 3,
}
PLANNER = {"prefer": "time", "steps": 2}


def files(workshop: Workshop, array: dict[str, Any] = ARRAY, **job: Any) -> list[Any]:
    return [workshop.write("job.yaml", JOB | job), "--array", workshop.write("array.yaml", array)]


def planned(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "plan.json").read_bytes()))


def weights(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


def took_part(rounds: list[dict[str, Any]]) -> list[list[str]]:
    return [[part["device"] for part in step["devices"]] for record in rounds for step in record["steps"]]


def records(rounds: list[dict[str, Any]]) -> list[int]:
    return [sum(part["batch_size"] for step in record["steps"] for part in step["devices"]) for record in rounds]


@pytest.fixture(scope="module")
def whole() -> Iterator[Workshop]:
    """The folder of a run that chose its devices and trained to its end."""
    with temporary_workshop(Workshop) as workshop:
        done = workshop.run_here("run", *files(workshop, planner=PLANNER), "--runs", workshop.runs, "--json")
        assert done.code == 0, done.err
        assert done.json("run")["chosen"] == "2 newport"
        workshop.assert_clean()
        yield workshop


def test_a_run_measures_few_configurations_and_goes_on_with_the_best(whole: Workshop) -> None:
    plan, rounds = planned(whole.run_directory()), whole.rounds()
    steps = took_part(rounds)
    assert plan["trial_steps"] == sum(row["steps"] for row in plan["trials"])
    assert 0 < plan["step"] < 10
    first = plan["trials"][0]["steps"]
    assert steps[:first] == [["csd-00", "csd-01", "csd-02"]] * first
    assert all(devices == ["csd-00", "csd-01"] for devices in steps[plan["step"] :])
    assert plan["chosen"]["name"] == "2 newport"
    assert plan["nodes"] == {"csd-00": 32, "csd-01": 32}
    assert plan["resting"] == ["csd-02"]
    assert plan["clock"] == "modelled"
    assert plan["records"] == 3 * 10 * 96
    # A round has the records of ten steps of all drives, or up to a step more.
    for count in records(rounds):
        assert 960 <= count < 960 + 96
    notes = [record["detail"] for record in whole.records(whole.run_directory()) if record.get("what") == "note"]
    assert any("2 newport was chosen (time" in note for note in notes)
    # The estimate holds in what followed.
    after = [step for record in rounds[1:] for step in record["steps"] if sum_of(step) == 64]
    mean = sum(step["array_seconds"] for step in after) / len(after)
    assert mean == pytest.approx(plan["chosen"]["step_seconds"], rel=0.05)
    assert "Which devices train" in (whole.run_directory() / "report.html").read_text(encoding="utf-8")


def pre_trainings(workshop: Workshop) -> int:
    """How many trials the run's events tell of."""
    notes = [record["detail"] for record in workshop.records(workshop.run_directory()) if record.get("what") == "note"]
    return sum(note.startswith("pre-training of") for note in notes)


def sum_of(step: dict[str, Any]) -> int:
    return sum(part["batch_size"] for part in step["devices"])


@pytest.mark.long
def test_plan_ends_when_it_is_decided_and_the_run_can_be_gone_on_with(
    whole: Workshop, workshop: Workshop, csd_emu: Command
) -> None:
    options = ["--prefer", "time", "--steps", "2", "--runs", workshop.runs]
    done = csd_emu("plan", *files(workshop), *options, "--json")
    assert done.code == 0, done.err
    report = done.json("plan")
    directory = workshop.run_directory()
    assert (report["applied"], report["placement"]) == (False, None)
    assert report["devices"] == planned(directory)
    assert report["devices"]["chosen"]["name"] == "2 newport"
    (record,) = workshop.rounds()
    assert len(record["steps"]) == report["devices"]["trial_steps"]
    tried = pre_trainings(workshop)
    done = csd_emu("run", "--resume", directory, "--json")
    assert done.code == 0, done.err
    # What was decided stays as it was written, and nothing is tried again.
    assert planned(directory) == report["devices"]
    assert pre_trainings(workshop) == tried == len(report["devices"]["trials"])
    # Nothing is lost, nothing is taken twice: the weights are those of a run that was never ended.
    assert weights(directory) == weights(whole.run_directory())
    rounds = workshop.rounds()
    assert took_part(rounds) == took_part(whole.rounds())
    assert sum(records(rounds)) == sum(records(whole.rounds()))
    workshop.assert_clean()


@pytest.mark.long
def test_plan_applied_trains_to_the_end_and_prints_the_table(workshop: Workshop, csd_emu: Command) -> None:
    options = ["--prefer", "time", "--steps", "2", "--runs", workshop.runs, "--apply"]
    done = csd_emu("plan", *files(workshop), *options, "--plot", workshop.folder / "front.svg")
    assert done.code == 0, done.err
    assert "2 newport + 1 generic-a53" in done.out
    assert "<- chosen" in done.out
    assert re.search("devices chosen to train +2 newport", done.out)
    assert len(workshop.rounds()) == 3
    assert b"<svg" in (workshop.folder / "front.svg").read_bytes()
    workshop.assert_clean()


def test_from_tables_starts_nothing(workshop: Workshop, csd_emu: Command) -> None:
    done = csd_emu("plan", *files(workshop), "--prefer", "time", "--from-tables", "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    report = done.json("plan")
    assert report["summary"] is None
    assert report["devices"]["clock"] == "modelled"
    assert report["devices"]["trials"] == []
    assert report["devices"]["chosen"]["name"] == "2 newport"
    assert not workshop.runs.exists()
    workshop.assert_clean()


@pytest.mark.parametrize(
    ("every", "chosen"),
    [
        # All pay for the sum between servers: while it is dear, slow drives' records are worth waiting for.
        (1, "2 newport of a + 1 generic-a53 of a + 2 newport of b + 1 generic-a53 of b"),
        (100, "2 newport of a + 2 newport of b"),
    ],
)
def test_drives_of_all_servers_are_planned_from_tables(
    workshop: Workshop, csd_emu: Command, every: int, chosen: str
) -> None:
    workshop.write("array.yaml", ARRAY)
    servers = [{"name": "a", "array": "array.yaml"}, {"name": "b", "array": "array.yaml"}]
    server_group = {"name": "hall", "servers": servers, "link": {"bandwidth": "1 MB/s"}, "reduce_every": every}
    wanted = [workshop.write("job.yaml", JOB), "--servers", workshop.write("servers.yaml", server_group)]
    done = csd_emu("plan", *wanted, "--prefer", "time", "--from-tables", "--json")
    assert done.code == 0, done.err
    report = done.json("plan")
    assert report["array"] == "hall"
    plan = report["devices"]
    assert plan["clock"] == "modelled"
    assert not plan["trials"]
    assert plan["chosen"]["name"] == chosen
    assert {node.partition("-")[0] for node in plan["nodes"]} == {"a", "b"}
    workshop.assert_clean()


@pytest.mark.long
def test_a_drive_that_is_killed_while_planning_is_in_no_plan(workshop: Workshop, csd_emu: Command) -> None:
    def trying() -> bool:
        found = list(workshop.runs.glob("*/records.jsonl"))
        return bool(found) and "pre-training of" in found[0].read_text(encoding="utf-8")

    def kill() -> None:
        wait_until(trying)
        workshop.kill_agent("csd-01")

    with meanwhile(kill):
        wanted = files(workshop, planner={"prefer": "time", "steps": 300}, sync={"round_steps": 1000})
        done = csd_emu("plan", *wanted, "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    plan = done.json("plan")["devices"]
    assert plan["lost"] == ["csd-01"]
    assert plan["chosen"]["name"] == "1 newport"
    workshop.assert_clean()


@pytest.mark.long
def test_what_no_configuration_keeps_to_ends_the_run_and_keeps_what_was_trained(
    workshop: Workshop, csd_emu: Command
) -> None:
    done = csd_emu(
        "plan", *files(workshop), "--prefer", "time", "--steps", "2", "--deadline", "1 ms", "--runs", workshop.runs
    )
    assert done.code == 2
    assert "deadline" in done.err
    assert "too much" in done.err
    directory = workshop.run_directory()
    assert f"csd-emu run --resume {directory}" in done.err
    assert (directory / "checkpoint.safetensors").is_file()
    assert "Traceback" not in done.err
    job = yaml.safe_load((directory / "job.yaml").read_text())
    job["planner"]["deadline"] = "1 h"
    (directory / "job.yaml").write_text(yaml.safe_dump(job))
    done = csd_emu("run", "--resume", directory, "--json")
    assert done.code == 0, done.err
    assert done.json("run")["chosen"] == "2 newport"
    assert sum(records(workshop.rounds())) >= 3 * 960
    workshop.assert_clean()


@pytest.mark.long
def test_a_run_without_trials_begins_with_what_tables_say(workshop: Workshop, csd_emu: Command) -> None:
    wanted = files(workshop, rounds=1, sync={"round_steps": 4}, planner={"prefer": "time", "steps": 0})
    done = csd_emu("run", *wanted, "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    plan = planned(workshop.run_directory())
    assert (plan["step"], plan["trials"], plan["chosen"]["name"]) == (0, [], "2 newport")
    assert took_part(workshop.rounds()) == [["csd-00", "csd-01"]] * 6
    workshop.assert_clean()


@pytest.mark.long
def test_one_drive_alone_is_planned_at_once(workshop: Workshop, csd_emu: Command) -> None:
    array = ARRAY | {"devices": [{"profile": "newport"}]}
    done = csd_emu("plan", *files(workshop, array), "--prefer", "edp", "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    plan = done.json("plan")["devices"]
    assert plan["chosen"]["name"] == "1 newport"
    assert plan["feasible"] == 1
    workshop.assert_clean()


@pytest.mark.long
def test_a_model_without_a_table_is_planned_by_what_is_measured(workshop: Workshop, csd_emu: Command) -> None:
    wanted = files(workshop, ARRAY | {"clock": "wall"})
    refused = csd_emu("plan", *wanted, "--prefer", "time", "--from-tables")
    assert refused.code == 2
    assert "is in no calibration table" in refused.err
    done = csd_emu("plan", *wanted, "--prefer", "time", "--steps", "2", "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    plan = done.json("plan")["devices"]
    assert plan["clock"] == "wall"
    assert plan["trials"]
    workshop.assert_clean()


@pytest.mark.parametrize(
    ("options", "job", "message"),
    [
        ([], {}, "say what to plan: --placement for the layers"),
        (["--prefer", "speed"], {}, "'speed' is no quantity"),
        (["--prefer", "time=2,energy=lots"], {}, "'lots' is no weight from 0 to 100"),
        (["--prefer", "time", "--include", "csd-12"], {}, "planner.include: 'csd-12' does not train in this array"),
        (["--prefer", "time", "--exclude", "csd-0"], {}, "did you mean 'csd-0"),
        (["--prefer", "time", "--exclude", "host"], {}, "planner.exclude: 'host' does not train in this array"),
        (["--prefer", "time", *[w for n in range(3) for w in ("--exclude", f"csd-0{n}")]], {}, "no device to train"),
        (["--prefer", "time", "--include", "csd-00", "--exclude", "csd-00"], {}, "both in include and in exclude"),
        (["--prefer", "time", "--watts", "5"], {}, "'5' has no unit"),
        (["--prefer", "time", "--joules", "0 J"], {}, "joules must be more than 0"),
        (["--prefer", "time", "--from-tables", "--watts", "1 W"], {}, "watts"),
        (["--prefer", "time", "--from-tables", "--steps", "3"], {}, "--from-tables takes no steps"),
        (["--prefer", "time", "--placement"], {}, "--placement is planned on its own"),
        (["--prefer", "time", "--plot", "front.txt"], {}, "--plot front.txt: give a file"),
        (["--prefer", "time"], {"mode": "federated", "tuner": "none"}, "planner is for mode: sync"),
    ],
)
def test_what_cannot_be_planned_is_said_before_anything_starts(
    workshop: Workshop, csd_emu: Command, options: list[str], job: dict[str, Any], message: str
) -> None:
    job = {name: value for name, value in (JOB | job).items() if name != "sync" or "mode" not in job}
    wanted = [workshop.write("job.yaml", job), "--array", workshop.write("array.yaml", ARRAY)]
    done = csd_emu("plan", *wanted, *options, "--runs", workshop.runs)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert not workshop.runs.exists()
    workshop.assert_clean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--servers", "servers.yaml", "--prefer", "time"], "--servers is planned with --from-tables"),
        (["--servers", "servers.yaml", "--prefer", "time", "--from-tables", "--apply"], "--servers is planned with"),
        (["--servers", "servers.yaml", "--placement"], "--placement: the host's part of a model is one server's"),
        (["--servers", "servers.yaml", "--array", "array.yaml", "--prefer", "time"], "give either --array"),
        (["--prefer", "time"], "give either --array ARRAY.YAML or --servers"),
    ],
)
def test_what_cannot_be_planned_of_servers_is_said(
    workshop: Workshop, csd_emu: Command, options: list[str], message: str
) -> None:
    workshop.write("array.yaml", ARRAY)
    servers = workshop.write("servers.yaml", {"name": "hall", "servers": [{"name": "a", "array": "array.yaml"}]})
    job = workshop.write("job.yaml", JOB)
    words = [
        {"servers.yaml": str(servers), "array.yaml": str(servers.parent / "array.yaml")}.get(w, w) for w in options
    ]
    done = csd_emu("plan", job, *words, "--runs", workshop.runs)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert not workshop.runs.exists()


@pytest.mark.long
def test_a_run_can_be_told_to_choose(workshop: Workshop, csd_emu: Command) -> None:
    job = files(workshop, planner={"prefer": "power", "steps": 1})
    done = csd_emu("run", *job, "--prefer", "time", "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    plan = planned(workshop.run_directory())
    assert plan["prefer"] == "time"
    assert {row["steps"] for row in plan["trials"]} == {1}


@pytest.mark.long
def test_the_example_chooses_its_quick_drives_and_learns(workshop: Workshop, csd_emu: Command) -> None:
    array = EXAMPLE / "array.yaml"
    done = csd_emu(
        "run", EXAMPLE / "job.yaml", "--array", array, "--engine", "native", "--runs", workshop.runs, "--json"
    )
    assert done.code == 0, done.err
    summary = done.json("run")
    assert summary["chosen"] == "2 newport"
    assert summary["accuracy"] >= 0.95
    workshop.assert_clean()
