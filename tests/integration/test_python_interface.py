"""`csd_emu` as a program uses it, on native drives."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import csd_emu
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError, CsdError, RunCancelled, UserCodeFailed
from tests import ROOT
from tests.support.commands import wait_until

JOB = {"model": "digits_cnn", "data": "digits", "batch_size": 64}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_follow_each_other_on_one_array(folder: Path) -> None:
    with csd_emu.Array(drives=2, engine="native") as array:
        first = array.train(JOB, rounds=2, seed=1)
        again = array.train(JOB, rounds=2, seed=1, name="again")
        assert first.accuracy == again.accuracy
        assert (first.clock, len(first.rounds), len(first.devices), len(first.steps)) == ("modelled", 2, 4, 0)
        assert list(first.rounds["accuracy"])[-1] == first.accuracy
        assert first.directory.parent == folder / "runs"
        assert again.directory.name.endswith("-again")
        assert first.report().read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        assert first.plot().subfigs
        compared = csd_emu.compare(first, again)
        assert "no difference" in repr(compared)
        assert "<table" in compared._repr_html_()
        assert csd_emu.load(first.directory).accuracy == first.accuracy
        with pytest.raises(RunCancelled, match="was cancelled"):
            array.train(JOB, rounds=500, on_round=lambda record: record["round"] > 1)
        handle = array.submit(JOB, rounds=500)
        handle.wait_for_round(1, 120)
        opened = csd_emu.open(handle.directory or "")
        assert (handle.done, opened.done, array.busy) == (False, False, True)
        with pytest.raises(ConfigurationError, match="a run is going on"):
            array.submit(JOB)
        opened.cancel()
        assert opened.wait(60)
        assert isinstance(handle.exception(60), RunCancelled)
        assert any("joined" in line for line in handle.logs())
        with pytest.raises(RunCancelled, match="stopped before its end"):
            opened.result(60)
        early = array.submit(JOB, rounds=500, seed=5)  # other data: drives are started anew first
        early.cancel()
        assert isinstance(early.exception(60), RunCancelled)
        assert array.train(JOB, rounds=1).summary.rounds == 1


OWN_MODEL = """
import csd_emu as ce
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

    def forward(self, images):
        return self.layers(images)

if __name__ == "__main__":
    with ce.Array(drives=2, engine="native") as array:
        print(array.train(model=Net, data="digits", rounds=2).rounds["accuracy"].iloc[-1])
"""


def test_a_class_of_the_script_that_runs_is_trained(folder: Path) -> None:
    (folder / "script.py").write_text(OWN_MODEL, encoding="utf-8")
    ended = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=True)
    assert float(ended.stdout) > 0.5


def test_a_users_own_error_is_raised_with_its_traceback(folder: Path) -> None:
    (folder / "broken.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = nn.Linear(64, 10)\n\n    def forward(self, images):\n        if self.training:\n"
        "            raise RuntimeError('my own bug')\n        return self.layer(images.flatten(1))\n",
        encoding="utf-8",
    )
    with csd_emu.Array(drives=2, engine="native") as array:
        with pytest.raises(UserCodeFailed, match=r"(?s)broken.py.*my own bug"):
            array.train(JOB | {"model": "broken.py:Net"})
        with pytest.raises(CsdError, match="unknown key; did you mean 'rounds'"):
            array.train(JOB, roundz=2)
        with pytest.raises(ConfigurationError, match=r"sync and sync\.precision: one setting is given twice"):
            array.train(JOB, sync={}, **{"sync.precision": "fp16"})


KILLED = """
import os, signal, sys
import csd_emu as ce
array = ce.Array(drives=2, engine="native")
run = array.submit(model="digits_cnn", data="digits", rounds=5000)
run.wait_for_round(1)
print(array.name, array._connection._process.pid, flush=True)
sys.stdin.read()
"""


def left(name: str) -> bool:
    return (Paths.default().arrays / name / "state.json").exists()


def kill_program(folder: Path, *, with_server: bool) -> str:
    """Kill a program in its run, and return what its array was called."""
    (folder / "script.py").write_text(KILLED, encoding="utf-8")
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "script.py"], cwd=folder, text=True, **pipes) as started:
        assert started.stdout is not None
        name, server = str(started.stdout.readline()).split()
        if with_server:
            os.kill(int(server), signal.SIGKILL)
        started.kill()
    return name


def test_what_a_killed_program_leaves_is_found_and_said(folder: Path) -> None:
    name = kill_program(folder, with_server=True)
    with pytest.warns(UserWarning, match=f"{name}: left running by a program that is gone; ended now"):
        csd_emu.Array(drives=2, engine="native").close()
    assert not left(name)


def test_drives_end_with_a_program_that_is_killed(folder: Path) -> None:
    name = kill_program(folder, with_server=False)
    wait_until(lambda: not left(name))


def test_two_arrays_are_open_at_once_and_a_dropped_one_is_closed(folder: Path) -> None:
    one = csd_emu.Array(drives=1, engine="native")
    other = csd_emu.Array(drives=1, engine="native")
    runs = [array.submit(JOB, rounds=1) for array in (one, other)]
    assert [run.result(120).summary.rounds for run in runs] == [1, 1]
    server = one._connection._process
    del one
    assert server.wait(60) == 0
    other.close()
    other.close()


def test_commands_are_functions(folder: Path) -> None:
    job = ROOT / "examples" / "hypertune" / "job.yaml"
    array = {"engine": "native", "devices": [{"profile": "newport", "count": 4}]}
    simulated = csd_emu.simulate(job, array, steps=20)
    assert simulated["drives"] == 4
    planned = csd_emu.plan(job, array, prefer="time", from_tables=True)
    assert planned["devices"]["chosen"]
    with pytest.raises(ConfigurationError, match="did you mean 'tuner'"):
        csd_emu.simulate(job, array, changes={"tunr": "none"})


@pytest.mark.timeout(600)
def test_the_notebook_of_the_docs_runs(folder: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("accuracy" in output.get("data", {}).get("text/plain", "") for output in outputs)
    assert not list(Paths.default().arrays.glob(f"python-{os.getpid()}-*"))
