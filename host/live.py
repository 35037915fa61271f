"""Which runs are in progress: each leaves a file in its array's folder while it trains."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from host.files import replace_file

LIVE_FILE = "live.json"


class LiveRun(msgspec.Struct, frozen=True):
    """A run in progress.

    Attributes:
        array: its array's name.
        pid: its process.
        process_begin: when that process began, in Unix seconds: another may have its number later.
        address: where its metrics are.
        run_directory: what it writes into.
    """

    array: str
    pid: int
    process_begin: float
    address: str
    run_directory: str

    @classmethod
    def of_this_process(cls, array: str, address: str, run_directory: Path) -> LiveRun:
        """Return this process's run."""
        return cls(array, os.getpid(), psutil.Process().create_time(), address, str(run_directory.absolute()))

    @property
    def alive(self) -> bool:
        """Whether its process still is."""
        try:
            return psutil.Process(self.pid).create_time() == self.process_begin
        except psutil.Error:
            return False


@contextlib.contextmanager
def announce(folder: Path, run: LiveRun) -> Iterator[None]:
    """Say inside the block, in the array's `folder`, that `run` is in progress."""
    path = folder / LIVE_FILE
    replace_file(path, msgspec.json.format(msgspec.json.encode(run)))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def list_live(arrays: Path) -> list[LiveRun]:
    """Return the runs in progress, by array; files that killed processes left, or damaged ones, do not count."""
    runs = []
    for path in sorted(arrays.glob(f"*/{LIVE_FILE}")):
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            run = msgspec.json.decode(path.read_bytes(), type=LiveRun)
            if run.alive:
                runs.append(run)
    return runs
