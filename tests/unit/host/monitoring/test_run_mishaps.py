"""A disk that fills or becomes read-only in the middle of a round, a clock set back: what was saved stays."""

import errno
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from firmware_agent.common.errors import EnvironmentUnfit
from host.core.states.training_state import TrainingState
from host.fleet.checkpoint import Checkpoint
from host.monitoring.run_directory import RunDirectory
from tests.unit.host.monitoring.test_run_directory import EVENT, ROUND, begun


def checkpoint(rounds: int) -> Checkpoint:
    return Checkpoint(TrainingState(rounds, 0.5, 1.0, {"w": np.full(3, rounds, np.float32)}, {}, {}), 1.0)


def same_as_saved(path: Path) -> None:
    """What was said to be saved is there: two rounds, and their checkpoint."""
    with RunDirectory.reopen(path) as directory:
        found = directory.load_checkpoint("job")
        assert found is not None
        assert (found.state.round, found.state.weights["w"].tolist()) == (2, [2, 2, 2])
        assert directory.rewind(2) == 2
        assert [record.round for record in directory.read_rounds()] == [1, 2]
        directory.append(EVENT)


def test_records_that_end_in_the_middle_of_a_line_lose_no_round_that_was_saved(tmp_path: Path) -> None:
    """The kernel takes a part of the line, and then nothing more."""
    directory = begun(tmp_path)
    directory.save_checkpoint(checkpoint(2), "job")
    records = directory.path / "records.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (records.stat().st_size + 20, before[1]))
    try:
        with pytest.raises(EnvironmentUnfit, match=r"records\.jsonl: cannot be written .*--resume"):
            directory.append(msgspec.structs.replace(ROUND, round=3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        directory.close()
    assert not records.read_bytes().endswith(b"\n")
    same_as_saved(directory.path)


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda directory: directory.save_checkpoint(checkpoint(3), "job"), "checkpoint.safetensors"),
        (lambda directory: directory.write_user_file("net.py", ""), "net.py"),
    ],
)
def test_a_disk_that_becomes_read_only_loses_no_round_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[RunDirectory], Any], named: str
) -> None:
    opened = os.open

    def read_only(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *arguments, **named)

    with begun(tmp_path) as directory:
        directory.save_checkpoint(checkpoint(2), "job")
        monkeypatch.setattr(os, "open", read_only)
        with pytest.raises(EnvironmentUnfit, match=rf"{named}.*Read-only file system"):
            write(directory)
        monkeypatch.undo()
    same_as_saved(directory.path)


def test_a_clock_that_is_set_back_overwrites_no_run_and_hides_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(tmp_path)
    first.save_checkpoint(checkpoint(2), "job")
    first.close()
    stamp = first.path.name[:15]
    for text in (stamp, "20200101-000000", stamp):
        monkeypatch.setattr(time, "strftime", lambda *_, text=text: text)
        RunDirectory.create(tmp_path, "lab").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "20200101-000000-lab",
        *(f"{stamp}-lab{number}" for number in ("", "-2", "-3")),
    ]
    os.utime(first.path / "records.jsonl", (0, 0))
    same_as_saved(first.path)
