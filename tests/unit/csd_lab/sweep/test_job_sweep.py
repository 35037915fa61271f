"""A sweep on arrays that train nothing."""

import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from csd_lab.sweep import own_arrays
from csd_lab.sweep.job_sweep import sweep
from csd_lab.sweep.sweep_points import ValueRange
from firmware_agent.common.errors import ConfigurationError, DeviceError
from host.app.python_api.run_result import RunResult
from tests import ROOT

RUN = ROOT / "tests" / "data" / "run-0.1.0" / "federated"
JOB = {"model": "digits_cnn", "data": "digits"}


class StubArray:
    """An array whose runs are all one of 0.1.0's."""

    made: list["StubArray"]
    alive = True
    broken: frozenset[int]

    def __init__(self, **options: Any) -> None:
        self.options, self.trained, self.closed = options, list[Mapping[str, Any]](), False
        self._busy = threading.Lock()
        type(self).made.append(self)

    def submit(self, job: Any, **changes: Any) -> Any:
        assert self._busy.acquire(blocking=False), "two runs at once on one array"
        self.trained.append(changes)
        return SimpleNamespace(result=lambda: self.end(changes), directory=RUN, cancel=lambda: None)

    def end(self, changes: Mapping[str, Any]) -> RunResult:
        self._busy.release()
        if changes["batch_size"] in self.broken:
            raise DeviceError("csd-00: planted")
        return RunResult(RUN)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[StubArray]:
    StubArray.made, StubArray.broken = [], frozenset()
    monkeypatch.setattr(own_arrays, "Array", StubArray)
    return StubArray


def trained(stub: type[StubArray]) -> list[Mapping[str, Any]]:
    return [changes for array in stub.made for changes in array.trained]


@pytest.mark.parametrize("parallel", [1, 3])
def test_every_point_is_trained_once_and_arrays_are_closed(
    stub: type[StubArray], parallel: int, tmp_path: Path
) -> None:
    seen: list[Any] = []
    result = sweep(
        JOB,
        {"batch_size": [16, 32, 64]},
        seeds=range(4),
        folder=tmp_path,
        max_parallel=parallel,
        changes={"rounds": 2},
        on_run=seen.append,
    )
    assert sorted((each["batch_size"], each["seed"]) for each in trained(stub)) == [
        (size, seed) for size in (16, 32, 64) for seed in range(4)
    ]
    assert {each["rounds"] for each in trained(stub)} == {2}
    assert len(stub.made) <= parallel
    assert all(array.closed for array in stub.made)
    assert len(seen) == len(result.runs) == 12
    assert [point.seeds for point in result.points] == [4, 4, 4]
    assert result.points[0].deviation == 0
    assert len(result.table) == 12
    assert len(result.results()) == 12


def test_a_sweep_goes_on_where_it_ended_and_tries_what_failed_again(stub: type[StubArray], tmp_path: Path) -> None:
    stub.broken = frozenset({32})
    first = sweep(JOB, {"batch_size": [16, 32]}, folder=tmp_path)
    assert [run.error for run in first.runs] == ["", "csd-00: planted"]
    assert first.best == {"batch_size": 16}
    with open(tmp_path / "sweep.jsonl", "a", encoding="utf-8") as file:
        file.write('{"point": {"batch_')  # a process that was killed while it wrote
    stub.made, stub.broken = [], frozenset()
    second = sweep(JOB, {"batch_size": [16, 32, 64]}, folder=tmp_path)
    assert [each["batch_size"] for each in trained(stub)] == [32, 64]
    assert [run.error for run in second.runs] == ["", "", ""]
    stub.made = []
    assert sweep(JOB, {"batch_size": [16, 32, 64]}, folder=tmp_path).runs == second.runs
    assert not stub.made


def test_runs_of_another_job_or_array_are_not_taken_for_those_of_this_one(
    stub: type[StubArray], tmp_path: Path
) -> None:
    model = tmp_path / "net.py"
    model.write_text("def build(): ...\n")
    job = JOB | {"model": f"{model}:build"}
    variations: list[Any] = [{}, {"changes": {"rounds": 3}}, {"array": {"drives": 4}}]
    for number, options in enumerate(variations, 1):
        for _ in range(2):
            sweep(job, {"batch_size": [16]}, folder=tmp_path / "sweep", **options)
            assert len(trained(stub)) == number
    model.write_text("def build(): return 1\n")
    sweep(job, {"batch_size": [16]}, folder=tmp_path / "sweep", array={"drives": 4})
    assert len(trained(stub)) == 4


def test_an_interrupt_ends_a_sweep_at_once(stub: type[StubArray], tmp_path: Path) -> None:
    def interrupt(run: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(JOB, {"batch_size": range(1, 1001)}, folder=tmp_path, on_run=interrupt)
    assert len(trained(stub)) < 1000
    assert all(array.closed for array in stub.made)


def test_sampled_points_are_within_their_ranges_and_the_same_again(stub: type[StubArray], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    over = {"batch_size": ValueRange(8, 64, True), "learning_rate": ValueRange(0.001, 0.1, False, True)}
    runs = sweep(JOB, over, samples=5, seeds=[1, 2], objective="joules_per_record", folder=tmp_path).runs
    assert len(runs) == 10
    assert all(8 <= run.point["batch_size"] <= 64 and 0.001 <= run.point["learning_rate"] <= 0.1 for run in runs)
    count = len(trained(stub))
    again = sweep(JOB, over, samples=5, seeds=[1, 2], objective="joules_per_record", folder=tmp_path).runs
    assert again == runs
    assert len(trained(stub)) == count


@pytest.mark.parametrize(
    ("over", "options", "told"),
    [
        ({"batchsize": [1]}, {}, "batchsize: unknown key; did you mean 'batch_size'"),
        ({"batch_size": [16, "many"]}, {}, "batch_size: must be a whole number"),
        ({"batch_size": []}, {}, "the sweep has 0 runs"),
        ({"seed": [1]}, {}, "seed: one setting is given twice"),
        ({"batch_size": [1]}, {"changes": {"batch_size": 2}}, "batch_size: one setting is given twice"),
        ({"batch_size": [1]}, {"objective": "speed"}, "objective: 'speed' is no figure; choose one of accuracy"),
        ({"batch_size": range(1, 1001), "rounds": range(1, 1001)}, {}, "the sweep has 1000000 runs"),
    ],
)
def test_what_cannot_be_swept_starts_nothing(
    stub: type[StubArray], over: Any, options: Any, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        sweep(JOB, over, folder=tmp_path, **options)
    assert not stub.made
    assert not list(tmp_path.iterdir())


def test_a_plot_has_a_row_a_point(stub: type[StubArray], tmp_path: Path) -> None:
    result = sweep(JOB, {"batch_size": [16, 32]}, seeds=[0, 1], folder=tmp_path)
    (axes,) = result.plot().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["batch_size=16", "batch_size=32"]
    assert len(axes.lines) == 2
