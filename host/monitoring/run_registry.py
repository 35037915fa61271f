"""Registry of runs in progress: each leaves a file in its array's folder while it trains."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from csd_emu.util.process_identity import ProcessMark, mark_of
from firmware_agent.common.atomic_files import read_file, replace_file

LIVE_FILE = "live.json"
_MOST_BYTES = 1 << 16


class LiveRun(msgspec.Struct, frozen=True):
    """A run in progress.

    Attributes:
        array: its array's name.
        process: its own, of the host.
        address: where its metrics are.
        run_directory: what it writes into.
    """

    array: str
    process: ProcessMark
    address: str
    run_directory: str

    @classmethod
    def of_this_process(cls, array: str, address: str, run_directory: Path) -> LiveRun:
        """Return this process's run."""
        mark = mark_of(os.getpid()) or ProcessMark(os.getpid(), os.geteuid(), "")
        return cls(array, mark, address, str(run_directory.absolute()))

    @property
    def alive(self) -> bool:
        """Whether its process still is."""
        return mark_of(self.process.pid) == self.process


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
            run = msgspec.json.decode(read_file(path, _MOST_BYTES), type=LiveRun)
            if run.alive:
                runs.append(run)
    return runs
