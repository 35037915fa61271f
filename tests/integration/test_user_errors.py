"""Failures of the user's own code in whole runs on the native engine: seen at once, written down, exit code 1."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ARRAY, JOB, Done, Workshop, temporary_workshop
from tests.support.pages import Page

NET = """\
import torch
from torch import nn

class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("my bug <b>in</b> \\x1b[31mbackward")

class Net(nn.Module):
    def __init__(self, where, after, only):
        super().__init__()
        self.front, self.back = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), nn.Linear(8, 10)
        self.where, self.after, self.only, self.calls = where, after, only, 0

    def forward(self, x):
        self.calls += self.training and self.mine()
        y = self.back(self.front(x))
        if self.calls > self.after:
            if self.where == "forward":
                raise RuntimeError("my bug <b>in</b> \\x1b[31mforward")
            if self.where == "exit":
                raise SystemExit(0)
            if self.where == "backward":
                return Broken.apply(y)
            return y[:-1]
        return y

    def mine(self):
        import sys
        return not self.only or sys.argv[-1].endswith(self.only)

def build(where: str = "forward", after: int = 0, only: str = ""):
    return Net(where, after, only)

def build_here(where: str = "forward", after: int = 0, only: str = ""):
    import sys
    if "native" in sys.argv:
        raise OSError("my bug <b>in</b> \\x1b[31mthe builder")
    return Net("nowhere", 1 << 30, "")
"""
BATCHES = {"epochs": 1, "rounds": 2, "batch_size": 64, "target": None}
SYNC: dict[str, Any] = {"mode": "sync", "sync": {"round_steps": 4}}
OVERLAP = SYNC | {"communication": {"schedule": "priority", "slice": "1 KiB", "overlap": True}}
MODES: dict[str, dict[str, Any]] = {"federated": {}, "sync": SYNC, "overlap": OVERLAP}


class Up(Workshop):
    """A workshop with an array for each mode that is up, so that a run takes a second."""

    def start_all(self) -> None:
        for mode in ("federated", "sync"):
            array = self.write(f"{mode}.yaml", ARRAY | {"name": mode})
            job = self.write("up.yaml", JOB | BATCHES | (SYNC if mode == "sync" else {}))
            done = self.run("up", array, "--job", job)
            assert done.code == 0, done

    def train(self, model: str = "nets.py:build", **changes: Any) -> tuple[Done, Path]:
        """Train and return how it ended, and its run directory."""
        before = set(self.runs.iterdir()) if self.runs.is_dir() else set()
        self.array = self.folder / f"{changes.get('mode', 'federated')}.yaml"
        done = self.run_here(*self.job_arguments(**{"model": model, **BATCHES, **changes}))
        assert self.runs.is_dir(), done
        made = set(self.runs.iterdir()) - before
        assert made, done
        (directory,) = made
        return done, directory


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with temporary_workshop(Up) as workshop:
        workshop.write("nets.py", NET)
        workshop.start_all()
        yield workshop
        for mode in ("federated", "sync"):
            assert workshop.run_here("down", mode).code == 0
        workshop.assert_clean()


def line_of(text: str) -> int:
    return 1 + next(number for number, line in enumerate(NET.splitlines()) if text in line)


def failures_of(directory: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((directory / "summary.json").read_text())["failures"]
    return found


def check(done: Done, directory: Path, kind: str, *words: str) -> dict[str, Any]:
    """Hold a run that failed to all that a user is promised; return its first failure."""
    assert done.code == 1, done
    (failure, *_) = failures_of(directory)
    assert failure["kind"] == kind
    assert done.err.count("Traceback (most recent call last)") == len(failures_of(directory))
    for word in words:
        assert word in done.err, (word, done.err)
        assert word in failure["traceback"]
    assert "\x1b" not in done.err + done.out
    assert f"the {kind} failed on {failure['device']} in round {failure['round']}" in done.err
    assert f"the run failed: the {kind} failed on {failure['device']}" in done.out
    assert "_call_impl" not in done.err
    kinds = [json.loads(line)["kind"] for line in (directory / "records.jsonl").read_text().splitlines()]
    assert "failure" in kinds
    assert (directory / "model.safetensors").exists()
    raw = (directory / "report.html").read_text(encoding="utf-8")
    assert raw.index("This run failed") < raw.index("<h1>")
    assert "<b>in</b>" not in raw
    return failure


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_model_that_raises_ends_the_run_and_shows_its_line(up: Up, mode: str, where: str) -> None:
    done, directory = up.train(model_arguments={"where": where, "after": 5}, **MODES[mode])
    line = line_of(f"my bug <b>in</b> \\x1b[31m{where}")
    failure = check(done, directory, "model", f'  File "nets.py", line {line}, in {where}', "    raise RuntimeError(")
    assert failure["device"] in {"csd-00", "csd-01"}
    assert (failure["step"] is None) == (mode == "federated")
    assert "frames of csd-emu" in failure["traceback"]
    assert failure["error"].startswith("RuntimeError: my bug <b>in</b> ")
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["reached"], summary["mode"]) == (False, "federated" if mode == "federated" else "sync")
    if summary["rounds"] == 0:
        assert summary["accuracy"] is None


def test_a_builder_that_fails_in_the_drives_alone(up: Up) -> None:
    done, directory = up.train("nets.py:build_here")
    failure = check(done, directory, "model", f"line {line_of('the builder')}, in build_here", "OSError: my bug")
    assert (failure["round"], failures_of(directory)[0]["count"]) == (1, failure["count"])
    assert "unknown after 0 rounds" in done.out


def test_an_output_of_the_wrong_shape_names_what_was_done_with_it(up: Up) -> None:
    done, directory = up.train(model_arguments={"where": "shape", "after": 3})
    check(done, directory, "model", "self._functional.cross_entropy(", "ValueError: Expected input batch_size")


def test_a_model_that_exits_is_a_failure_and_no_lost_drive(up: Up) -> None:
    done, directory = up.train(model_arguments={"where": "exit"})
    check(done, directory, "model", "SystemExit: 0", "    raise SystemExit(0)")
    assert '"what":"lost"' not in (directory / "records.jsonl").read_text()


def test_a_failed_run_goes_on_if_the_job_says_so_and_still_fails(up: Up) -> None:
    arguments = {"where": "forward", "only": "csd-01"}
    done, directory = up.train(model_arguments=arguments, on_failure="continue", rounds=3)
    failure = check(done, directory, "model", "my bug")
    assert (failure["device"], failure["count"]) == ("csd-01", 3)
    rounds = [each for each in up.records(directory) if each["kind"] == "round"]
    assert [[part["device"] for part in each["devices"]] for each in rounds] == [["csd-00"]] * 3
    again = up.run_here("run", "--resume", directory)  # it was done, and has failed for good
    assert (again.code, "was started" in again.out) == (1, True)


@pytest.mark.parametrize("mode", ["federated", "sync"])
def test_it_ends_when_no_drive_is_left_that_can_do_its_task(up: Up, mode: str) -> None:
    done, directory = up.train(on_failure="continue", **MODES[mode])
    failure = check(done, directory, "model", "my bug")
    assert failure["count"] >= 2
    assert "unknown after 0 rounds" in done.out


@pytest.mark.parametrize(
    ("source", "changes", "kind", "place"),
    [
        (
            "from host.policies.aggregation import FedAvg\nclass Mine(FedAvg):\n    rounds = 0\n"
            "    def aggregate(self, weights, parts):\n        self.rounds += 1\n"
            "        assert self.rounds < 2, 'my <b>in</b> bug'\n"
            "        return super().aggregate(weights, parts)\n",
            {"model": "digits_cnn", "strategy": "mine.py:Mine"},
            "strategy",
            "in aggregate",
        ),
        (
            "from host.policies.batching import FixedBatches\nclass Mine(FixedBatches):\n"
            "    def __init__(self, batches, tables, names):\n        super().__init__(batches, tables, names)\n"
            "    def observe(self, step, seconds, left=None):\n"
            "        return {}['my <b>in</b> bug']\n",
            {**SYNC, "model": "digits_cnn", "tuner": "mine.py:Mine"},
            "tuner",
            "in observe",
        ),
    ],
    ids=["strategy", "tuner"],
)
def test_a_plugin_that_raises_shows_its_line(
    up: Up, source: str, changes: dict[str, Any], kind: str, place: str
) -> None:
    up.write("mine.py", source)
    done, directory = up.train(**changes)
    failure = check(done, directory, kind, f'  File "mine.py", line 6, {place}', source.splitlines()[5].strip())
    assert failure["device"] == "host"


def test_a_gate_fails_and_its_junit_file_has_the_line(up: Up) -> None:
    job = up.write("gate.yaml", JOB | BATCHES | {"model": "nets.py:build"})
    base, out = up.folder / "base.json", up.folder / "out.xml"
    arguments = ["ci", "run", job, "--array", up.folder / "federated.yaml", "--runs", up.runs]
    bands = ["--band", "records_per_device_second=none", "--band", "joules_per_record=none"]
    done = up.run_here(*arguments, "--baseline", base, "--junit", out, *bands, "--write-baseline")
    assert (done.code, base.exists()) == (1, False)
    line = line_of("x1b[31mforward")
    assert f"line {line}, in forward" in out.read_text()


def test_a_model_that_cannot_be_built_here_shows_its_line_and_starts_nothing(up: Up) -> None:
    up.write("bad.py", "def build():\n    return {}['layers']\n")
    done = up.run_here(*up.job_arguments(model="bad.py:build"))
    assert done.code == 2
    assert "  File \"bad.py\", line 2, in build\n    return {}['layers']" in done.err
    assert "host/" not in done.err


def test_the_page_of_the_report_is_sound(up: Up) -> None:
    _, directory = up.train()
    page = Page((directory / "report.html").read_text(encoding="utf-8"))
    assert "my bug <b>in</b>" in page.text
