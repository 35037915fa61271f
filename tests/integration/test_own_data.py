"""Data of the user's own on native drives: a table in CSV, a data set in code, images with masks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.commands import Done, Workshop

Command = Callable[..., Done]
NET = """
from torch import nn


def line():
    return nn.Linear(3, 1)


def pixels():
    return nn.Conv2d(3, 2, 1)
"""
DATA = """
import sys

import torch
from torch.utils.data import Dataset


class Lines(Dataset):
    def __init__(self):
        print("Lines is made", file=sys.stderr)

    def __len__(self):
        return 120

    def __getitem__(self, index):
        if index == 200:
            raise KeyError("my bug")
        x = torch.randn(3, generator=torch.Generator().manual_seed(index))
        return x, x.sum()[None]
"""


@pytest.fixture
def own(workshop: Workshop) -> Workshop:
    """A workshop with models."""
    workshop.write("net.py", NET)
    return workshop


def train(own: Workshop, csd_emu: Command, *arguments: Any) -> dict[str, Any]:
    done = csd_emu("run", *arguments, "--runs", own.runs, "--json")
    assert done.code == 0, done.err
    assert done.err.count("Lines is made") <= 1
    own.assert_clean()
    return done.json("run")


def test_a_regression_on_a_csv_file_learns(own: Workshop, csd_emu: Command) -> None:
    x = np.random.default_rng(0).standard_normal((150, 3))
    rows = [f"{a:.6f},{b:.6f},{c:.6f},{a - 2 * b + 0.5 * c:.6f},{'test' if n % 5 == 0 else 'train'}\n"
            for n, (a, b, c) in enumerate(x)]  # fmt: skip
    (own.folder / "table.csv").write_text("".join(["a,b,c,y,split\n", *rows]))
    job = {
        "model": "net.py:line",
        "data": {"source": "./table.csv"},
        "loss": "mean_squared_error",
        "rounds": 3,
        "batch_size": 8,
    }
    summary = train(own, csd_emu, own.write("job.yaml", job), "--array", own.array)
    losses = [record["test_loss"] for record in own.rounds()]
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < 0.2 * np.mean((x @ [1, -2, 0.5]) ** 2)
    assert set(summary["metrics"]) == {"mean_absolute_error"}


def test_a_data_set_in_code_travels_with_its_run(own: Workshop, csd_emu: Command) -> None:
    own.write("my_data.py", DATA)
    job = {"model": "net.py:line", "data": {"source": "my_data.py:Lines"}, "rounds": 3, "batch_size": 8}
    whole = train(own, csd_emu, own.write("job.yaml", job), "--array", own.array)
    own.runs.rename(own.folder / "whole")
    train(own, csd_emu, own.write("job.yaml", job | {"rounds": 1}), "--array", own.array)
    directory = own.run_directory()
    kept = directory / "job.yaml"
    kept.write_text(kept.read_text().replace("rounds: 1", "rounds: 3"))
    for name in ("net.py", "my_data.py", "job.yaml"):
        (own.folder / name).unlink()
    (directory / "my_data.py").write_text(DATA + "\n")
    done = csd_emu("run", "--resume", directory)
    assert (done.code, "is another than the run began with" in done.err) == (2, True)
    (directory / "my_data.py").write_text(DATA)
    assert train(own, csd_emu, "--resume", directory)["metrics"] == whole["metrics"]
    own.write("net.py", NET)
    own.write("my_data.py", DATA.replace("200", "100"))
    done = csd_emu("run", own.write("job.yaml", job), "--array", own.array, "--runs", own.folder / "none")
    assert (done.code, (own.folder / "none").exists()) == (2, False)
    assert "my_data.py:Lines: item 100 failed: KeyError: 'my bug'" in " ".join(done.err.split())
    line = DATA.splitlines().index('            raise KeyError("my bug")') + 1
    assert f'my_data.py", line {line}, in __getitem__' in " ".join(done.err.split())


def test_images_with_masks_learn_the_class_of_every_pixel(own: Workshop, csd_emu: Command) -> None:
    generator = np.random.default_rng(0)
    for name in ("images", "masks"):
        (own.folder / "seen" / name).mkdir(parents=True)
    for number in range(40):
        pixels = generator.integers(0, 256, (6, 5, 3), np.uint8)
        Image.fromarray(pixels).save(own.folder / "seen/images" / f"{number}.png")
        Image.fromarray((pixels[..., 0] > 127).astype(np.uint8) * 255).save(own.folder / "seen/masks" / f"{number}.png")
    job = {
        "model": "net.py:pixels",
        "data": {"source": "./seen"},
        "loss": "cross_entropy",
        "rounds": 3,
        "batch_size": 4,
        "learning_rate": 0.3,
    }
    assert train(own, csd_emu, own.write("job.yaml", job), "--array", own.array)["accuracy"] is None
    losses = [record["test_loss"] for record in own.rounds()]
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < 0.9 * np.log(2)
