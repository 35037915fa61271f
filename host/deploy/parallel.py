"""A verb on many drives: in threads, so many at a time; one drive's failure is that drive's alone."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from csd_emu.engines.remote.drive_layout import DriveLayout
from csd_emu.engines.remote.inventory import DriveEntry
from csd_emu.engines.remote.shell import Shell, open_shell
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import CsdError
from host.core.interrupts import INTERRUPTS
from host.deploy.verb_protocol import DriveSite, Verb, VerbOutcome, VerbResult

log = logging.getLogger(__name__)
OpenShell = Callable[[DriveEntry, Deadline], AbstractContextManager[Shell]]
# After Ctrl-C threads get so long to end; one that still waits for a connection is left to the end of the process.
_LEAVE_SECONDS = 5.0
_WAIT_SECONDS = 0.5


class Board(Protocol):
    """Is told how the work goes; called from several threads."""

    def begin(self, drives: int) -> None:
        """Say on how many drives work begins; is called once, first."""

    def show(self, drive: str, what: str, share: float | None) -> None:
        """Say what is being done on a drive, and how much of it is done (0 to 1), if that is known."""

    def finish(self, outcome: VerbOutcome) -> None:
        """Say how it ended on a drive."""


@dataclass(frozen=True)
class Limits:
    """How many drives at a time, and for how long.

    Attributes:
        jobs: at most so many drives, and so connections, at a time.
        seconds: each drive may take, from when its turn comes; wall time.
        batch: drives that are worked on before the next ones begin, and only if none of them failed; None: all.
        dry_run: nothing on any drive may change.
    """

    jobs: int
    seconds: float
    batch: int | None = None
    dry_run: bool = False


def run_verb(
    drives: Sequence[DriveEntry], verb: Verb, limits: Limits, board: Board, connect: OpenShell = open_shell
) -> list[VerbOutcome]:
    """Do `verb` on all drives and return how it ended on each, in the order of `drives`.

    Raises:
        KeyboardInterrupt: Ctrl-C; connections that were open are closed, and no drive is begun any more.
    """
    board.begin(len(drives))
    size = limits.batch or len(drives)
    outcomes: list[VerbOutcome] = []
    for first in range(0, len(drives), size):
        batch = drives[first : first + size]
        failed = [outcome.drive for outcome in outcomes if outcome.result is VerbResult.FAILED]
        if failed:
            outcomes += [_skip(drive.name, failed[0], board) for drive in batch]
        else:
            outcomes += _Crew(batch, verb, limits, board, connect).work()
    return outcomes


def _skip(drive: str, failed: str, board: Board) -> VerbOutcome:
    outcome = VerbOutcome(
        drive, VerbResult.SKIPPED, f"not begun, since {failed} failed; repair that one and run this again"
    )
    board.finish(outcome)
    return outcome


class _Crew:
    """Threads that work on a batch of drives."""

    def __init__(
        self, drives: Sequence[DriveEntry], verb: Verb, limits: Limits, board: Board, connect: OpenShell
    ) -> None:
        self._drives, self._verb, self._limits, self._board, self._connect = drives, verb, limits, board, connect
        self._waiting: queue.SimpleQueue[DriveEntry] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[VerbOutcome | BaseException] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._shells: list[Shell] = []
        self._left = False

    def work(self) -> list[VerbOutcome]:
        """Return the outcomes, in the order of the drives."""
        for drive in self._drives:
            self._waiting.put(drive)
        threads = [
            threading.Thread(target=self._take_drives, name=f"deploy-{number}", daemon=True)
            for number in range(min(self._limits.jobs, len(self._drives)))
        ]
        try:
            for thread in threads:
                thread.start()
            done = {outcome.drive: outcome for outcome in (self._next() for _ in self._drives)}
        except BaseException:
            with INTERRUPTS.deferred():
                self._leave(threads)
            raise
        for thread in threads:
            thread.join()
        return [done[drive.name] for drive in self._drives]

    def _next(self) -> VerbOutcome:
        """Wait for one drive; in slices, since a wait without an end does not see Ctrl-C everywhere."""
        while True:
            try:
                ended = self._ended.get(timeout=_WAIT_SECONDS)
            except queue.Empty:
                continue
            if isinstance(ended, BaseException):
                raise ended
            return ended

    def _leave(self, threads: list[threading.Thread]) -> None:
        with self._lock:
            self._left = True
            shells = list(self._shells)
        for shell in shells:
            shell.close()
        deadline = Deadline(_LEAVE_SECONDS)
        for thread in threads:
            if thread.ident is not None:
                thread.join(deadline.left_seconds)

    def _take_drives(self) -> None:
        while not self._left:
            try:
                drive = self._waiting.get_nowait()
            except queue.Empty:
                return
            try:
                outcome = self._do(drive)
            except BaseException as error:  # the main thread raises it
                self._ended.put(error)
                return
            self._board.finish(outcome)
            self._ended.put(outcome)

    def _do(self, drive: DriveEntry) -> VerbOutcome:
        begin = time.monotonic()
        try:
            outcome = self._visit(drive)
        except CsdError as error:
            text = " ".join(str(error).split()).removeprefix(f"drive {drive.name}: ")
            outcome = VerbOutcome(drive.name, VerbResult.FAILED, text)
        except Exception as error:  # a bug of ours, or of a library: it is this drive's alone, too
            log.error("drive %s: not expected", drive.name, exc_info=error)
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            outcome = VerbOutcome(
                drive.name, VerbResult.FAILED, f"failed as csd-emu does not expect ({what}); report it"
            )
        facts = outcome.facts | {"wall_seconds": time.monotonic() - begin}
        return VerbOutcome(outcome.drive, outcome.result, outcome.what, facts)

    def _visit(self, drive: DriveEntry) -> VerbOutcome:
        def show(what: str, share: float | None) -> None:
            self._board.show(drive.name, what, share)

        deadline = Deadline(self._limits.seconds)
        show("connect", None)
        with self._connect(drive, deadline) as shell:
            with self._lock:
                self._shells.append(shell)
            try:
                layout = DriveLayout(PurePosixPath(drive.folder))
                return self._verb(DriveSite(drive, shell, layout, deadline, self._limits.dry_run, show))
            finally:
                with self._lock:
                    self._shells.remove(shell)
