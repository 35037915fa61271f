"""Strategies and tuners of a user's own in whole runs, on the native engine."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Done, Workshop
from tests.support.plugins import STATEFUL

Command = Callable[..., Done]
EXAMPLES = Path(__file__).parents[2] / "examples"
SYNC: dict[str, Any] = {"mode": "sync", "epochs": 1, "rounds": 1, "sync": {"round_steps": 4}, "target": None}


def assert_refused(done: Done, workshop: Workshop, *words: str) -> None:
    assert done.code == 2, done
    assert done.err.startswith("csd-emu: ")
    assert done.err.count("csd-emu: ") == 1
    assert ('  File "mine.py"' in done.err) == ("Traceback" in done.err)  # of the user's code alone
    assert "host/" not in done.err
    assert all(word in done.err for word in words), done.err
    workshop.assert_clean()
    assert not workshop.runs.exists()


@pytest.mark.long
@pytest.mark.parametrize("name", ["strategy", "tuner"])
def test_an_example_trains_and_its_run_directory_keeps_the_file(
    workshop: Workshop, csd_emu: Command, name: str
) -> None:
    folder = EXAMPLES / name
    done = csd_emu("run", folder / "job.yaml", "--array", folder / "array.yaml", "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    summary = done.json("run")
    (code,) = folder.glob("*.py")
    assert (workshop.run_directory() / code.name).read_bytes() == code.read_bytes()
    if name == "strategy":
        assert summary["accuracy"] > 0.9
    else:
        assert summary["retunes"] >= 1
    workshop.assert_clean()


def test_the_example_of_a_tuner_is_simulated_and_mentioned_by_tune(workshop: Workshop, csd_emu: Command) -> None:
    files = [EXAMPLES / "tuner" / "job.yaml", "--array", EXAMPLES / "tuner" / "array.yaml", "--json"]
    simulated = csd_emu("simulate", *files).json("simulate")
    assert simulated["tuner"] == "step_down.py:StepDown"
    assert simulated["runs"][0]["retunes"]
    assert csd_emu("simulate", *files, "--tuner", "stannis").json("simulate")["tuner"] == "stannis"
    assert any("StepDown" in note for note in csd_emu("tune", *files).json("tune")["notes"])
    workshop.assert_clean()


@pytest.mark.parametrize(
    ("source", "changes", "words"),
    [
        (None, {}, ["strategy 'mine.py:Mine': cannot read", "give a path from the job file's folder"]),
        ("import not_there\n", {}, ["strategy 'mine.py:Mine': cannot be imported: ModuleNotFoundError"]),
        ("class Mine: pass\n", {}, ["Mine is no strategy, aggregate is missing"]),
        (
            "from host.policies.aggregation import FedAvg as Mine\n",
            {"trim": 1},
            ["strategy.trim: unknown key; it has no options"],
        ),
    ],
)
def test_a_broken_plugin_starts_nothing(
    workshop: Workshop, csd_emu: Command, source: str | None, changes: dict[str, Any], words: list[str]
) -> None:
    if source is not None:
        workshop.write("mine.py", source)
    arguments = workshop.job_arguments(strategy={"name": "mine.py:Mine"} | changes)
    for command in (arguments, ["validate", workshop.job, "--array", workshop.array, "--build"]):
        assert_refused(csd_emu(*command), workshop, *words)


def test_a_broken_tuner_starts_nothing_and_is_not_simulated(workshop: Workshop, csd_emu: Command) -> None:
    workshop.write("mine.py", "def Mine(batches):\n    return 5\n")
    arguments = workshop.job_arguments(**SYNC, tuner="mine.py:Mine")
    for command in (arguments, ["simulate", workshop.job, "--array", workshop.array]):
        done = csd_emu(*command)
        done = Done(done.code, done.out, done.err[done.err.index("csd-emu: ") :])  # simulate says what it had begun
        assert_refused(done, workshop, "tuner 'mine.py:Mine': int is no tuner, probes is missing")


@pytest.mark.parametrize(
    ("source", "changes", "words"),
    [
        (
            "from host.policies.aggregation import FedAvg\nclass Mine(FedAvg):\n    rounds = 0\n"
            "    def aggregate(self, weights, parts):\n        self.rounds += 1\n"
            "        assert self.rounds < 3, 'tired'\n"
            "        return super().aggregate(weights, parts)\n",
            {"strategy": "mine.py:Mine", "epochs": 1},
            "the strategy failed on host in round 3: AssertionError: tired",
        ),
        (
            "from host.policies.batching import FixedBatches\nclass Mine(FixedBatches):\n"
            "    def __init__(self, batches, tables, names):\n        super().__init__(batches, tables, names)\n"
            "    def observe(self, step, seconds, left=None):\n        return {}[step]\n",
            {**SYNC, "tuner": "mine.py:Mine"},
            "the tuner failed on host in round 1: KeyError: 1",
        ),
    ],
    ids=["strategy", "tuner"],
)
@pytest.mark.long
def test_one_that_raises_in_the_middle_ends_the_run_with_its_traceback_and_cleans_up(
    workshop: Workshop, csd_emu: Command, source: str, changes: dict[str, Any], words: str
) -> None:
    workshop.write("mine.py", source)
    done = csd_emu(*workshop.job_arguments(**changes))
    assert done.code == 1
    assert words in done.err
    assert done.err.count("Traceback") == 1
    workshop.assert_clean()
    assert len(workshop.rounds()) == (2 if "strategy" in changes else 0)


@pytest.mark.long
def test_a_resumed_run_goes_on_with_the_same_strategy_and_its_state(workshop: Workshop, csd_emu: Command) -> None:
    original = workshop.write("mine.py", STATEFUL)
    job = {"epochs": 1, "target": None, "strategy": {"name": "mine.py:Slow", "keep": 0.7}}
    whole = workshop.job_arguments(**job, rounds=4)
    assert csd_emu(*whole[:-1], workshop.folder / "other").code == 0
    assert csd_emu(*workshop.job_arguments(**job, rounds=2)).code == 0
    original.unlink()
    directory = workshop.run_directory()
    text = (directory / "job.yaml").read_text()
    (directory / "job.yaml").write_text(text.replace("rounds: 2", "rounds: 4"))
    kept = (directory / "mine.py").read_text()
    (directory / "mine.py").write_text(kept.replace("1 - self.keep", "1.5 - self.keep"))
    done = csd_emu("run", "--resume", directory)
    assert done.code == 2
    assert "mine.py: is another than the run began with" in done.err
    (directory / "mine.py").write_text(kept)
    assert csd_emu("run", "--resume", directory).code == 0
    (other,) = (workshop.folder / "other").iterdir()
    assert (directory / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    workshop.assert_clean()


@pytest.mark.long
def test_a_tuners_state_is_resumed_too(workshop: Workshop, csd_emu: Command) -> None:
    folder = EXAMPLES / "tuner"
    shutil.copy(folder / "array.yaml", workshop.array)
    shutil.copy(folder / "step_down.py", workshop.folder)
    text = (folder / "job.yaml").read_text()
    job = workshop.write("job.yaml", text)
    assert csd_emu("run", job, "--array", workshop.array, "--runs", workshop.folder / "other").code == 0
    workshop.write("job.yaml", text.replace("rounds: 4", "rounds: 2"))
    assert csd_emu("run", job, "--array", workshop.array, "--runs", workshop.runs).code == 0
    directory = workshop.run_directory()
    written = directory / "job.yaml"
    written.write_text(written.read_text().replace("rounds: 2\n", "rounds: 4\n"))
    assert csd_emu("run", "--resume", directory).code == 0
    (other,) = (workshop.folder / "other").iterdir()
    assert (directory / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert [r["retunes"] for r in workshop.rounds()] == [
        r["retunes"] for r in workshop.records(other) if r["kind"] == "round"
    ]


def test_model_and_strategy_files_of_one_name_are_refused(workshop: Workshop, csd_emu: Command) -> None:
    (workshop.folder / "other").mkdir()
    workshop.write("mine.py", "from host.policies.aggregation import FedAvg as Mine\n")
    net = "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    workshop.write("other/mine.py", net)
    done = csd_emu(*workshop.job_arguments(model="other/mine.py:build", strategy="mine.py:Mine"))
    assert_refused(done, workshop, "another file of the job has the same name mine.py; rename one of them")
