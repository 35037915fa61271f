"""`csd-emu simulate` and `csd-emu reproduce`: nothing is started, and what they print keeps its schema."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from csd_lab.cli.reproduce import print_hypertune
from csd_lab.reproduce.hypertune_result import HypertuneReport
from tests.support.commands import ARRAY, JOB, Done, Workshop

Command = Callable[..., Done]
SYNC: dict[str, Any] = {
    "mode": "sync",
    "tuner": "hypertune",
    "sync": {"tuning": {"slow_batch": 32}},
    "disturb": [{"device": "csd-01", "at_step": 20, "weight": 100, "steps": 40}],
}


@pytest.fixture(autouse=True)
def _nothing_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("a device was started")

    monkeypatch.setattr("csd_emu.engines.native_engine.NativeEngine.start", start)


def arguments(workshop: Workshop, **changes: Any) -> list[str | Path]:
    workshop.write("array.yaml", ARRAY | {"host": {"trains": True}})
    return ["simulate", workshop.write("job.yaml", JOB | SYNC | changes), "--array", workshop.array]


def test_a_job_is_simulated_over_the_band(workshop: Workshop, csd_emu: Command) -> None:
    done = csd_emu(*arguments(workshop), "--json")
    assert done.code == 0, done
    report = done.json("simulate")
    assert (report["clock"], report["basis"], report["tuner"]) == ("modelled", "simulated", "hypertune")
    assert [run["ratio"] for run in report["runs"]] == [11, 15.2, 21]
    for run in report["runs"]:
        assert run["speedup"] == pytest.approx(run["records_per_second"] / run["baseline"]["records_per_second"])
        assert sum(run["joules"].values()) == pytest.approx(run["joules_per_record"] * run["records"])
        assert [retune["step"] for retune in run["retunes"]] == [23, 63]
    assert any(figure["name"] == "memory_bytes_per_second" for figure in report["assumed"])
    low, middle, high = report["runs"]
    assert low["bands"] == high["bands"] == {}
    baseline = {f"baseline.{name}": value for name, value in middle["baseline"].items()}
    figures = middle | baseline | {"step_seconds": middle["step_seconds"][1]}
    for name, band in middle["bands"].items():
        assert band["low"] <= figures[name] <= band["high"]
    wide, narrow = (middle["bands"][name] for name in ("records_per_second", "speedup"))
    assert wide["high"] / wide["low"] > 2 * narrow["high"] / narrow["low"]  # most of it cancels in a ratio
    left = csd_emu(*arguments(workshop), "--json", "--tuner", "stannis").json("simulate")
    for tuned, other in zip(report["runs"], left["runs"], strict=True):
        assert other["retunes"] == []
        assert tuned["records_per_second"] > other["records_per_second"]
    workshop.assert_clean()


def test_a_host_that_does_not_train_leaves_the_run_as_it_is_over_the_band(workshop: Workshop, csd_emu: Command) -> None:
    command = arguments(workshop)
    workshop.write("array.yaml", ARRAY)
    report = csd_emu(*command, "--json", "--drives", "50", "--steps", "70").json("simulate")
    assert (report["drives"], report["steps"], report["host_trains"]) == (50, 70, False)
    assert len({run["records_per_second"] for run in report["runs"]}) == 1
    assert len({run["speedup"] for run in report["runs"]}) == 3


def test_what_a_person_reads(workshop: Workshop, csd_emu: Command) -> None:
    done = csd_emu(*arguments(workshop), "--drives", "10000", "--tuner", "none", "--steps", "5")
    assert done.code == 0, done
    for words in ("10000 drives", "simulated", "assumed", "clock: modelled"):
        assert words in done.out


@pytest.mark.parametrize(
    ("changes", "more", "words"),
    [
        ({"disturb": [{"device": "csd-09", "at_step": 1, "weight": 1, "steps": 1}]}, [], ["'csd-09' is none of the 3"]),
        ({"sync": {"tuning": {"slow_batch": 60000}}}, [], ["a batch of 60000 is not between 0 and"]),
        ({"tuner": "none", "batch_size": 60000}, [], ["csd-00: a batch of 60000 is not between 0 and"]),
        ({"model_arguments": {"num_classes": 12}}, [], ["has no calibration table", "csd-emu calibrate"]),
        ({}, ["--drives", "1000001"], ["--drives 1000001: must be between 1 and 1000000"]),
        ({}, ["--steps", "1000001"], ["--steps 1000001: must be between 1 and 1000000"]),
        ({}, ["--drives", "1"], ["'csd-01' is none of the 2"]),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    workshop: Workshop, csd_emu: Command, changes: dict[str, Any], more: list[str], words: list[str]
) -> None:
    done = csd_emu(*arguments(workshop, **changes), *more)
    assert (done.code, done.out) == (2, ""), done
    for word in words:
        assert word in done.err
    assert "Traceback" not in done.err


def test_a_federated_job_is_refused(workshop: Workshop, csd_emu: Command) -> None:
    done = csd_emu("simulate", workshop.job, "--array", workshop.array)
    assert (done.code, done.out) == (2, ""), done
    assert "mode: only synchronous training can be simulated; write mode: sync in the job file" in done.err


def server_group(workshop: Workshop, **changes: Any) -> list[str | Path]:
    """A simulation of five servers with the workshop's array."""
    file: dict[str, Any] = {"name": "hall", "servers": [{"name": "srv", "array": "array.yaml", "count": 5}]}
    path = workshop.write("servers.yaml", file | changes)
    return ["simulate", workshop.write("job.yaml", JOB | SYNC), "--servers", path]


def test_servers_are_simulated_step_by_step_with_what_fails(workshop: Workshop, csd_emu: Command) -> None:
    failures = {"server_mtbf": "3 s", "server_repair": "1 s", "drive_mtbf": "3 s", "rendezvous": "1 s"}
    racks = {"servers": 2, "oversubscription": 2}
    done = csd_emu(*server_group(workshop, racks=racks, failures=failures), "--json", "--steps", "60")
    assert done.code == 0, done
    report = done.json("simulate-servers")
    assert (report["servers"], report["drives"], report["steps"], report["clock"]) == (5, 10, 60, "modelled")
    (run,) = report["runs"]
    assert len(run["steps"]) == 60
    assert run["losses"]["servers_lost"] > 0
    assert run["losses"]["servers_back"] > 0
    assert run["losses"]["drives_lost"] > 0
    assert sum(step["records"] for step in run["steps"]) == run["records"]
    assert sum(step["array_seconds"] for step in run["steps"]) == pytest.approx(run["array_seconds"])
    assert sum(run["seconds"].values()) == pytest.approx(run["array_seconds"])
    assert sum(run["joules"].values()) == pytest.approx(run["joules_per_record"] * run["records"])
    assert 0 < run["efficiency"] < 1
    assert any(figure["name"] == "failures.rendezvous" for figure in report["assumed"])
    again = csd_emu(*server_group(workshop, racks=racks, failures=failures), "--json", "--steps", "60")
    assert again.json("simulate-servers")["runs"] == report["runs"]
    workshop.assert_clean()


def test_one_server_is_what_its_array_is_alone(workshop: Workshop, csd_emu: Command) -> None:
    servers = [{"name": "srv", "array": "array.yaml"}]
    workshop.write("array.yaml", ARRAY | {"host": {"trains": True}})
    one = csd_emu(*server_group(workshop, servers=servers), "--json").json("simulate-servers")
    alone = csd_emu(*arguments(workshop), "--json").json("simulate")
    for run, other in zip(one["runs"], alone["runs"], strict=True):
        for name in ("ratio", "array_seconds", "records", "records_per_second", "joules_per_record", "step_seconds"):
            assert run[name] == pytest.approx(other[name], rel=1e-12)
        reasons = [retune["reason"].replace("srv/", "") for retune in run["retunes"]]
        assert reasons == [retune["reason"] for retune in other["retunes"]] != []


def test_what_a_person_reads_of_servers(workshop: Workshop, csd_emu: Command) -> None:
    done = csd_emu(*server_group(workshop, reduce_every=4), "--steps", "8")
    assert done.code == 0, done
    for words in (
        "5 servers, 10 drives",
        "simulated",
        "where the seconds go",
        "every 4 steps: ring",
        "clock: modelled",
    ):
        assert words in done.out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"racks": {"servers": 2, "oversubscription": 0.5}}, "racks.oversubscription: "),
        ({"racks": {"server": 2}}, "racks.server: unknown key; did you mean 'servers'?"),
        ({"failures": {"server_mtbf": "0 s"}}, "failures.server_mtbf must be more than 0 s"),
        ({"servers": [{"name": "srv", "array": "none.yaml"}]}, "none.yaml: cannot be read"),
        ({"link": {"bandwidth": "0 B/s"}}, "link.bandwidth must be more than 0 B/s"),
    ],
)
def test_a_servers_file_that_cannot_be_simulated_is_refused(
    workshop: Workshop, csd_emu: Command, changes: dict[str, Any], words: str
) -> None:
    done = csd_emu(*server_group(workshop, **changes))
    assert (done.code, done.out) == (2, ""), done
    assert words in done.err
    assert "Traceback" not in done.err


def test_either_an_array_or_servers_are_simulated(workshop: Workshop, csd_emu: Command) -> None:
    for more in (["--array", workshop.array], ["--drives", "5"]):
        done = csd_emu(*server_group(workshop), *more)
        assert (done.code, done.out) == (2, ""), done
    done = csd_emu("simulate", workshop.job)
    assert done.code == 2
    assert "give either --array ARRAY.YAML or --servers SERVERS.YAML" in done.err


@pytest.mark.long
def test_hypertune_is_reproduced_with_every_figure_marked(
    workshop: Workshop, csd_emu: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = workshop.folder / "reproduced"
    done = csd_emu("reproduce", "hypertune", "--json", "--output", folder)
    assert done.code == 0, done
    report = done.json("reproduce")
    assert {row["model"] for row in report["scaling"]} == {
        *("mobilenet_v2", "squeezenet", "inception_v3", "nasnet_mobile")
    }
    assert {row["basis"] for row in report["scaling"] + report["disturbed"]} == {"simulated"}
    assert {row["basis"] for row in report["inputs"]} == {"emulated"}
    assert {row["verdict"] for row in report["verdicts"]} <= {"reproduced", "not reproduced", "undecidable"}
    assert all(row["reason"] for row in report["verdicts"])
    assert len(report["needed"]) == 3
    assert report["assumed"]
    assert {path.name for path in folder.iterdir()} == {Path(name).name for name in report["files"]}
    print_hypertune(msgspec.convert(report, HypertuneReport))
    printed = capsys.readouterr().out
    headings = ("Verdicts", "not reproduced", "Predicted", "needed", "impossible", "assumed")
    for words in (*headings, "squeezenet", report["files"][0]):
        assert words in printed
