"""Drives' processes on real streams: weights are equal whatever the schedule, and whether slices overlap computing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Done, Workshop, wait_until

Command = Callable[..., Done]

# A watchdog for a hang: a busy machine takes minutes.
_SECONDS = 600.0
ARRAY: dict[str, Any] = {
    "name": "lab",
    "engine": "native",
    "clock": "wall",
    "devices": [{"profile": "newport", "count": 3}],
}
JOB: dict[str, Any] = {
    "model": "net.py:build",
    "data": {"source": "digits", "private": 0.1},
    "mode": "sync",
    "rounds": 2,
    "batch_size": 16,
    "learning_rate": 0.1,
    "sync": {"round_steps": 25},
    "watchdog": "60 s",
}
# Buffers, dropout, a tied parameter, one that nothing uses, and an attention, which uses a module's weights without it.
MODEL = """
from torch import nn

class build(nn.Module):
    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(3, 2)
        self.conv, self.norm = nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.first, self.second = nn.Linear(576, 576), nn.Linear(576, 576, bias=False)
        self.second.weight = self.first.weight
        self.out, self.drop = nn.Linear(576, 10), nn.Dropout(0.2)

    def forward(self, images):
        x = self.norm(self.conv(images)).relu().flatten(2).transpose(1, 2)
        x = (x + self.attention(x, x, x, need_weights=False)[0]).flatten(1)
        return self.out(self.drop(self.second(self.first(x).relu()).relu()))
"""


def run(workshop: Workshop, csd_emu: Command, communication: Any, **job: Any) -> bytes:
    """Return the bytes of the weights that a run ends with."""
    workshop.write("net.py", MODEL)
    files = (
        workshop.write("job.yaml", JOB | job | {"communication": communication}),
        workshop.write("array.yaml", ARRAY),
    )
    before = set(workshop.runs.iterdir()) if workshop.runs.exists() else set()
    done = csd_emu("run", files[0], "--array", files[1], "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    (directory,) = set(workshop.runs.iterdir()) - before
    assert not [record for record in workshop.records(directory) if record.get("what") in ("lost", "failed")]
    workshop.assert_clean()
    return (directory / "model.safetensors").read_bytes()


@pytest.mark.long
def test_weights_after_50_steps_are_those_of_whole_tensors_bit_for_bit(workshop: Workshop, csd_emu: Command) -> None:
    want = run(workshop, csd_emu, "fifo")
    for communication in (
        {"schedule": "fifo", "overlap": True},
        {"schedule": "priority", "overlap": True},
        {"schedule": "priority", "slice": "10001 B", "credit": "30 kB", "overlap": True},
        {"schedule": "priority", "slice": "100 kB"},
    ):
        assert run(workshop, csd_emu, communication) == want, communication


@pytest.mark.long
@pytest.mark.parametrize("sync", [{"batch_norm": "synchronised"}, {"batch_norm": "frozen", "clip_norm": 1.0}])
def test_overlapping_steps_exchange_statistics_and_wait_for_all_gradients_where_they_must(
    workshop: Workshop, csd_emu: Command, sync: dict[str, Any]
) -> None:
    sync = {"round_steps": 8, "optimiser": {"name": "AdamW"}} | sync
    want = run(workshop, csd_emu, "fifo", sync=sync, learning_rate=0.001)
    overlapping = {"schedule": "priority", "slice": "64 KiB", "overlap": True}
    assert run(workshop, csd_emu, overlapping, sync=sync, learning_rate=0.001) == want


@pytest.mark.long
def test_a_run_goes_on_when_a_drive_dies_while_steps_overlap(workshop: Workshop) -> None:
    workshop.write("net.py", MODEL)
    job = JOB | {"rounds": 4, "communication": {"schedule": "priority", "overlap": True}}
    files = workshop.write("job.yaml", job), workshop.write("array.yaml", ARRAY)
    process = workshop.start("run", files[0], "--array", files[1], "--runs", workshop.runs)
    wait_until(lambda: len(workshop.rounds()) >= 1, _SECONDS)
    workshop.kill_agent("csd-01")
    _, err = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, err
    rounds = workshop.rounds()
    assert [len(record["steps"]) for record in rounds] == [25] * 4
    assert "csd-01" not in [part["device"] for part in rounds[-1]["devices"]]
    lost = [step["step"] for record in rounds for step in record["steps"] if step["lost"]]
    assert len(lost) <= 2  # the step at hand, and the one announced ahead
    told = [record for record in workshop.records(workshop.run_directory()) if record.get("what") == "lost"]
    assert len(told) <= 1  # none if it died between two rounds
    workshop.assert_clean()


@pytest.mark.long
def test_steps_that_overlap_resume_to_the_same_weights(workshop: Workshop, csd_emu: Command) -> None:
    communication = {"schedule": "priority", "slice": "32 KiB", "overlap": True}
    want = run(workshop, csd_emu, communication, rounds=3)
    workshop.write("job.yaml", JOB | {"rounds": 3, "communication": communication})
    directory = _kill_and_resume(workshop, csd_emu)
    assert (directory / "model.safetensors").read_bytes() == want
    workshop.assert_clean()


@pytest.mark.long
def test_a_tuner_learns_from_composed_steps_and_goes_on_as_it_would_have(workshop: Workshop, csd_emu: Command) -> None:
    """On the clock `modelled`: it tries settings, and a run that was killed decides alike."""
    job = JOB | {"model": "digits_cnn", "communication": "search", "rounds": 5, "sync": {"round_steps": 20}}
    link = {"bandwidth": "20 MB/s", "shared": True}
    array = ARRAY | {"clock": "modelled", "link": link}
    files = workshop.write("job.yaml", job), workshop.write("array.yaml", array)
    done = csd_emu("run", files[0], "--array", files[1], "--runs", workshop.runs)
    assert done.code == 0, done.err
    want = _decisions(workshop, workshop.run_directory())
    assert len(want) > 101  # a hundred steps, and more than one setting behind the first
    assert _decisions(workshop, _kill_and_resume(workshop, csd_emu)) == want


def _kill_and_resume(workshop: Workshop, csd_emu: Command) -> Path:
    """Run the workshop's job on its array, kill the host after a round, and resume; return the run directory."""
    other = workshop.folder / "other"
    files = workshop.folder / "job.yaml", workshop.folder / "array.yaml"
    process = workshop.start("run", files[0], "--array", files[1], "--runs", other)
    wait_until(lambda: any(_rounds(path) for path in other.glob("*/records.jsonl")), _SECONDS)
    process.kill()
    process.communicate()
    (directory,) = other.iterdir()
    done = csd_emu("run", "--resume", directory)
    assert done.code == 0, done.err
    return directory


def _decisions(workshop: Workshop, directory: Path) -> list[tuple[Any, ...]]:
    """What was changed, and how each step was sent and how long it took."""
    records = workshop.records(directory)
    changes = [(record["detail"],) for record in records if record.get("what") == "retuned"]
    rounds = {record["round"]: record["steps"] for record in records if record["kind"] == "round"}
    return changes + [(step["sending"], step["array_seconds"]) for steps in rounds.values() for step in steps]


def _rounds(records: Path) -> int:
    return records.read_bytes().count(b'"kind":"round"')
