"""Runs on records that lie in the drives, of any form and in both modes: the host learns how many there are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from firmware_agent.common.slices import Array
from tests.support.commands import Done, Workshop

Command = Callable[..., Done]
NET = """
from torch import nn
def table_net():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
"""
SIZES = {"csd-00": 57, "csd-01": 20}
TABLE: dict[str, Any] = {
    **{"model": "net.py:table_net", "data": {"source": "./sample.npz"}, "rounds": 3, "batch_size": 8},
    "learning_rate": 0.05,
}
SYNC: dict[str, Any] = {"mode": "sync", "momentum": 0.0}


def table(size: int, seed: int) -> dict[str, Array]:
    x = np.random.default_rng(seed).standard_normal((size, 6)).astype(np.float32)
    return {"x": x, "y": x @ np.arange(6, dtype=np.float32)[:, None]}


@pytest.fixture
def own(workshop: Workshop) -> Workshop:
    """A workshop with two drives that hold tables, in files of two kinds."""
    first, second = (table(size, number) for number, size in enumerate(SIZES.values()))
    np.savez(workshop.folder / "first.npz", **first)
    save_file(second, workshop.folder / "second.safetensors")
    np.savez(workshop.folder / "sample.npz", **table(40, 9))
    workshop.write("net.py", NET)
    lie = [workshop.folder / "first.npz", workshop.folder / "second.safetensors"]
    write_array(workshop, lie)
    return workshop


def write_array(workshop: Workshop, data: list[Path]) -> None:
    groups = [{"profile": "newport", "data": str(path)} for path in data]
    workshop.write("array.yaml", {"name": "lab", "engine": "native", "devices": groups})


def run(own: Workshop, csd_emu: Command, job: dict[str, Any]) -> dict[str, Any]:
    done = csd_emu("run", own.write("job.yaml", job), "--array", own.array, "--runs", own.runs, "--json")
    assert done.code == 0, done.err
    return done.json("run")


def samples(own: Workshop) -> list[dict[str, int]]:
    return [{part["device"]: part["samples"] for part in record["devices"]} for record in own.rounds()]


def notes(own: Workshop) -> str:
    records = own.records(own.run_directory())
    return "\n".join(each["detail"] for each in records if each["kind"] == "event" and each["what"] == "note")


@pytest.mark.parametrize("keys", [SYNC, {}], ids=["sync", "federated"])
def test_a_run_goes_on_as_it_would_have_and_on_the_same_records_alone(
    own: Workshop, csd_emu: Command, keys: dict[str, Any]
) -> None:
    job = TABLE | keys
    run(own, csd_emu, job)
    assert samples(own) == [SIZES] * 3
    assert not keys or "the host knows the number: 57 of csd-00, 20 of csd-01" in notes(own)
    losses = [record["test_loss"] for record in own.rounds()]
    assert losses[-1] < losses[0]
    weights = (own.run_directory() / "model.safetensors").read_bytes()
    own.runs.rename(own.folder / "whole")
    run(own, csd_emu, job | {"rounds": 1})
    directory = own.run_directory()
    text = (directory / "job.yaml").read_text()
    (directory / "job.yaml").write_text(text.replace("rounds: 1", "rounds: 3"))
    assert csd_emu("run", "--resume", directory).code == 0
    assert (directory / "model.safetensors").read_bytes() == weights
    (directory / "job.yaml").write_text(text.replace("rounds: 1", "rounds: 4"))
    np.savez(own.folder / "first.npz", **table(SIZES["csd-00"], 7))
    done = csd_emu("run", "--resume", directory)
    assert done.code != 0
    assert "csd-00: other records lie there in place than this run trained on" in " ".join(done.err.split())
    own.assert_clean()


def test_a_federated_run_takes_tables_in_place_and_refuses_those_of_another_form(
    own: Workshop, csd_emu: Command
) -> None:
    run(own, csd_emu, TABLE)
    assert samples(own) == [SIZES] * 3
    np.savez(own.folder / "first.npz", x=table(57, 0)["x"][:, :5], y=table(57, 0)["y"])
    done = csd_emu("run", own.job, "--array", own.array, "--runs", own.runs)
    assert done.code == 1
    assert "csd-00 holds records of x float32[5], y float32[1], the job's are of x float32[6]" in " ".join(
        done.err.split()
    )
    own.assert_clean()


def test_a_tuner_and_a_cut_work_on_images_in_place(workshop: Workshop, csd_emu: Command) -> None:
    generator = np.random.default_rng(0)
    paths = [workshop.folder / name for name in ("a.npz", "b.npz")]
    for path, size in zip(paths, (90, 30), strict=True):
        images = generator.integers(0, 17, (size, 8, 8), np.uint8)
        np.savez(path, images=images, labels=generator.integers(0, 10, size))
    write_array(workshop, paths)
    job = {"model": "digits_cnn", "data": {"source": "digits"}, "rounds": 2, "mode": "sync", "tuner": "hypertune"}
    run(workshop, csd_emu, job | {"placement": "6"})
    assert samples(workshop) == [{"csd-00": 90, "csd-01": 30}] * 2
    told = notes(workshop)
    assert "csd-00, csd-01: of each record that lies there in place the host learns its class and what" in told
    workshop.assert_clean()
