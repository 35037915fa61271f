"""The step of a job that a calibration table is of: what it depends on, and how it is measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles.calibration import CalibrationKey
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.frames.session_frames import Code, Job
from firmware_agent.common.losses.objective import ObjectiveSpec
from firmware_agent.common.models import resolve_model
from firmware_agent.common.shipped_code import ShippedCode
from host.app import missing_table
from host.app.calibration_measurement import array_request, machine_request, measure_table
from host.app.load_inputs import step_frame, task_of
from host.app.missing_table import job_request, measure_missing, read_job_request
from host.config.calibration_request import CalibrationRequest
from host.config.job_file import JobConfig
from host.config.resolve import ResolvedRun, load_plugins
from host.core.datasets import Dataset
from tests.support.fakes import FakeDrive

NET = """
from torch import nn

class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(8, 4), nn.LayerNorm(4), nn.Linear(4, 8)

    def forward(self, tokens):
        return self.out(self.norm(self.embed(tokens)))
"""
CROSS = ShippedCode("cross_entropy")


def dataset(fields: dict[str, Any] | None = None, name: str | None = None) -> Dataset:
    usual = {"image": np.zeros((4, 1, 8, 8), np.uint8), "label": np.zeros(4, np.int64)}
    return Dataset("some", fields or usual, fields or usual, 1.0, input_name=name)


def task(loss: ShippedCode = CROSS, data: Dataset | None = None, **keys: Any) -> str:
    job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}} | keys)
    used = data or dataset()
    frame = step_frame(job, ShippedCode("digits_cnn"), ObjectiveSpec(loss, used.input_fields, 1.0), None)
    return task_of(frame, used)


@given(
    rate=st.floats(1e-6, 100),
    seed=st.integers(0, 9),
    batch=st.integers(1, 64),
    momentum=st.floats(0.01, 0.99),
    shape=st.sampled_from([(1, 8, 8), (3, 5, 7)]),
    kind=st.sampled_from([np.uint8, np.float32]),
)
def test_images_with_class_numbers_cross_entropy_and_sgd_are_what_plain_tables_are_of(
    rate: float, seed: int, batch: int, momentum: float, shape: tuple[int, ...], kind: type
) -> None:
    data = dataset({"image": np.zeros((4, *shape), kind), "label": np.zeros(4, np.int64)})
    keys = {"learning_rate": rate, "seed": seed, "batch_size": batch, "momentum": momentum, "epochs": 3}
    assert task(data=data, **keys) == task(data=data, schedule="cosine", **keys) == ""


def test_whatever_else_a_step_depends_on_has_a_table_of_its_own() -> None:
    image, label = np.zeros((4, 1, 8, 8), np.uint8), np.zeros(4, np.int64)
    tasks = [
        task(),
        task(momentum=0),
        task(optimizer="AdamW"),
        task(optimizer={"name": "SGD", "nesterov": True}),
        task(clip_norm=1.0),
        task(freeze=["0.*"]),
        task(precision="float64"),
        task(ShippedCode("cross_entropy", None, {"label_smoothing": 0.1})),
        task(ShippedCode("loss.py:loss", "one")),
        task(ShippedCode("loss.py:loss", "another")),
        task(data=dataset({"image": image, "label": label, "mask": label}, "image")),
        task(data=dataset({"image": image, "label": label.astype(np.int32), "mask": label}, "image")),
        task(data=dataset({"image": image, "label": label, "mask": image}, "image")),
        task(data=dataset({"x": np.zeros((4, 3), np.float32), "label": label})),
        task(data=dataset({"x": np.zeros((4, 3)), "label": label})),
    ]
    assert len(set(tasks)) == len(tasks)
    # In synchronous mode the host steps.
    assert task(mode="sync", optimizer="AdamW", clip_norm=1.0) == task(mode="sync") == ""
    assert task(clip_norm=1.0) == task(clip_norm=2.0)


@pytest.fixture
def run(tmp_path: Path) -> ResolvedRun:
    (tmp_path / "net.py").write_text(NET)
    np.savez(tmp_path / "tokens.npz", tokens=np.arange(1200).reshape(200, 6) % 8)
    keys = {"model": "net.py:Language", "data": {"source": str(tmp_path / "tokens.npz")}, "loss": "next_token"}
    job = JobConfig.model_validate(keys | {"optimizer": "AdamW", "batch_size": 20, "seed": 3})
    config = ArrayConfig.model_validate({"name": "lab", "engine": "native", "devices": [{"profile": "newport"}]})
    return ResolvedRun(config, job, resolve_model(job.model, {}, tmp_path))


def request(run: ResolvedRun, *batches: int) -> CalibrationRequest:
    return job_request(run.job, run.spec, run.plugins, batches or None)[0]


def test_a_jobs_own_step_is_asked_for_in_its_own_batches(run: ResolvedRun) -> None:
    wanted = request(run)
    assert wanted.batches == (1, 2, 5, 15, 16, 20)
    assert request(run, 8, 2).batches == (2, 8)
    assert wanted.input_shape == (6,)
    assert (wanted.facts.classes, wanted.facts.parameters) == (1, 8 * 4 + 2 * 4 + 4 * 8 + 8)
    assert wanted.facts.activations == 6 * (4 + 4 + 8)
    synchronous = request(ResolvedRun(run.config, run.job.model_copy(update={"mode": "sync"}), run.spec)).job
    assert wanted.job is not None
    assert synchronous is not None
    assert (wanted.job.layers, synchronous.layers) == (False, True)
    assert wanted.key == CalibrationKey.of(run.spec, (6,), "reference", wanted.key.task)
    assert wanted.key.task


async def test_a_drive_takes_the_jobs_step_on_a_few_of_its_records(run: ResolvedRun) -> None:
    wanted = request(run, 1, 2)
    drive = FakeDrive(clock="counted")
    drive.pump()
    table = await measure_table(drive.session, wanted, "image", Silent())
    assert table.key == wanted.key
    (job,) = [frame for frame in drive.frames if isinstance(frame, Job)]
    assert (job.input_fields, job.loss, job.optimiser) == (["tokens"], Code("next_token"), Code("AdamW"))
    assert (job.model, job.source) == (run.spec.name, run.spec.source)
    assert job.learning_rate < run.job.learning_rate  # weights stay finite, whatever the job says
    for array in (machine_request(wanted), array_request(run.config, wanted)):
        assert array.dealt is not None
        assert [len(own) for own in array.dealt.private] == [64]
        assert array.data.source == run.job.data.source


DOUBLE = """
import torch

def double(outputs, batch):
    if outputs.dtype != torch.float64:
        raise TypeError("float64 alone")
    return outputs.mean()

def cut_off(outputs, batch):
    return outputs.detach().mean()

def train(model, csd):
    pass
"""


@pytest.mark.parametrize(
    "keys", [{"loss": "my.py:double", "precision": "float64"}, {"loss": "my.py:cut_off", "client": "my.py:train"}]
)
def test_a_loss_that_a_run_accepts_is_accepted(run: ResolvedRun, tmp_path: Path, keys: dict[str, Any]) -> None:
    (tmp_path / "my.py").write_text(DOUBLE)
    (tmp_path / "job.yaml").write_text("")
    job = JobConfig.model_validate(run.job.model_dump(exclude_unset=True) | keys)
    wanted, _ = job_request(job, run.spec, load_plugins(job, tmp_path / "job.yaml"), (1, 2))
    assert wanted.job is not None
    assert wanted.job.frame.loss.name == keys["loss"]


def test_a_missing_table_is_measured_once_for_drives_that_are_modelled(
    run: ResolvedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[CalibrationRequest] = []
    monkeypatch.setattr(missing_table, "keep_table", lambda _, wanted, *__: asked.append(wanted))
    stages: list[str] = []
    monkeypatch.setattr(Silent, "stage", lambda _, text: stages.append(text))
    paths: Any = None
    measure_missing(run, paths, Silent())
    assert [wanted.key for wanted in asked] == [request(run).key]
    assert "which no calibration table has: some " in stages[0]
    for update in ({"clock": "wall"}, {"engine": "qemu"}):
        config = ArrayConfig.model_validate(run.config.model_dump(exclude_unset=True) | update)
        measure_missing(ResolvedRun(config, run.job, run.spec), paths, Silent())
    assert len(asked) == 1


def test_a_job_file_says_what_its_model_takes(run: ResolvedRun, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: net.py:Language\ndata: {source: ./tokens.npz}\nloss: next_token\n")
    wanted = read_job_request(path, "1,4", (None, None, []))
    assert wanted.batches == (1, 4)
    assert wanted.job is not None
    assert wanted.job.frame.loss == Code("next_token")
    with pytest.raises(ConfigurationError, match=r"job\.yaml: says .*leave --input"):
        read_job_request(path, "1,4", ("1x8x8", None, []))
