"""A function of the user's own deals records out to native drives, in `run`, `run --resume` and after `up`."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.support.commands import Done, Workshop

Command = Callable[..., Done]
PART = """
import numpy as np


def by_label(fields, drives, generator, skip=0):
    labels = fields["label"]
    order = generator.permutation(len(labels))[skip:]
    return [order[labels[order] % drives == number] for number in range(drives)]


def breaks(fields, drives):
    raise KeyError("my bug")


def too_few(fields, drives):
    return [[0]]
"""
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits", "partition": {"function": "my_part.py:by_label", "options": {"skip": 37}}},
    "rounds": 2,
}


@pytest.fixture
def own(workshop: Workshop) -> Workshop:
    workshop.write("my_part.py", PART)
    return workshop


def test_a_function_of_ones_own_deals_records_out(own: Workshop, csd_emu: Command) -> None:
    job = own.write("job.yaml", JOB)
    assert csd_emu("run", job, "--array", own.array, "--runs", own.runs).code == 0
    directory = own.run_directory()
    held = msgspec.json.decode((directory / "versions.json").read_bytes())["held_records"]
    for number, row in enumerate(held["counts"]):
        classes = [int(name) for name, count in zip(held["classes"], row, strict=True) if count]
        assert {label % len(held["drives"]) for label in classes} == {number}
    assert held["left_out"] == 37
    trained = {each["device"]: each["samples"] for each in own.rounds()[0]["devices"]}
    assert trained == {name: sum(row) for name, row in zip(held["drives"], held["counts"], strict=True)}
    assert "data.partition 'my_part.py:by_label' left out 37 of" in (directory / "records.jsonl").read_text()
    assert "37 records lie on no drive" in (directory / "report.html").read_text()
    weights = (directory / "model.safetensors").read_bytes()

    own.runs.rename(own.folder / "whole")
    assert (
        csd_emu("run", own.write("job.yaml", JOB | {"rounds": 1}), "--array", own.array, "--runs", own.runs).code == 0
    )
    directory = own.run_directory()
    (directory / "job.yaml").write_text((directory / "job.yaml").read_text().replace("rounds: 1", "rounds: 2"))
    (own.folder / "my_part.py").unlink()  # the run directory has it
    done = csd_emu("run", "--resume", directory)
    assert done.code == 0, done.err
    assert (directory / "model.safetensors").read_bytes() == weights
    (directory / "my_part.py").write_text(PART + "\n")
    done = csd_emu("run", "--resume", directory)
    assert done.code == 2
    assert "my_part.py: is another than the run began with" in done.err
    own.assert_clean()


def test_an_array_that_is_up_is_held_to_what_the_function_said(own: Workshop, csd_emu: Command) -> None:
    job = own.write("job.yaml", JOB | {"rounds": 1})
    assert csd_emu("up", own.array, "--job", job).code == 0
    try:
        done = csd_emu("run", job, "--array", own.array, "--runs", own.runs)
        assert done.code == 0, done.err
        own.write("my_part.py", PART.replace("[skip:]", "[skip + 1:]"))
        done = csd_emu("run", job, "--array", own.array, "--runs", own.runs)
        assert done.code == 2
        assert "is up with another deal of records by data.partition.function" in done.err
    finally:
        csd_emu("down", "lab")
    own.assert_clean()


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (
            "breaks",
            ["data.partition 'my_part.py:breaks' failed: KeyError: 'my bug' (my_part.py, line 12)", "in breaks"],
        ),
        ("too_few", ["data.partition 'my_part.py:too_few' returned 1 arrays for", "return one per drive"]),
    ],
)
def test_a_function_that_fails_is_said_before_anything_starts(
    name: str, messages: list[str], own: Workshop, csd_emu: Command
) -> None:
    data = {"source": "digits", "partition": {"function": f"my_part.py:{name}"}}
    done = csd_emu("run", own.write("job.yaml", JOB | {"data": data}), "--array", own.array, "--runs", own.runs)
    assert done.code == 2
    for message in messages:
        assert message in " ".join(done.err.split())
    assert not own.runs.exists()
    own.assert_clean()
