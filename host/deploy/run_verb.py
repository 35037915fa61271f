"""`csd-emu deploy`: choose drives of an inventory, and do a verb on them, in threads, so many at a time.

One drive's failure is that drive's alone.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import importlib
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from csd_emu.engines.remote.drive_layout import DriveLayout
from csd_emu.engines.remote.inventory import DriveEntry, Inventory, load_inventory
from csd_emu.engines.remote.shell import CommandResult, OnCopied, OpenShell, Shell, open_shell
from csd_emu.util.daemon_threads import in_thread
from csd_emu.util.deadline import Deadline
from csd_emu.util.nearest_word import hint_at
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common import units
from firmware_agent.common.errors import ConfigurationError, CsdError
from host.core.interrupts import INTERRUPTS
from host.deploy.drive_lock import unless_lent
from host.deploy.verb_protocol import (
    DeployReport,
    DriveSite,
    Verb,
    VerbEntry,
    VerbOptions,
    VerbOutcome,
    VerbPlan,
    VerbResult,
    find_verb,
)
from host.deploy.verbs.enrol import former_drive

log = logging.getLogger(__name__)
# After Ctrl-C threads get so long to end; one that still waits for a connection is left to the end of the process.
_LEAVE_SECONDS = 5.0


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
        outcomes += (
            [_skip(drive.name, failed[0], board) for drive in batch]
            if failed
            else _Crew(batch, verb, limits, board, connect).work()
        )
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
        self._waiting = collections.deque(drives)
        self._done: dict[str, VerbOutcome] = {}
        self._lock = threading.Lock()
        self._shells: list[Shell] = []
        self._left = False

    def work(self) -> list[VerbOutcome]:
        """Return the outcomes, in the order of the drives."""
        threads: list[concurrent.futures.Future[None]] = []
        try:
            for number in range(min(self._limits.jobs, len(self._drives))):
                threads.append(in_thread(f"deploy-{number}", self._take_drives))
            for thread in concurrent.futures.as_completed(threads):
                thread.result()
        except BaseException:
            with INTERRUPTS.deferred():
                self._leave(threads)
            raise
        return [self._done[drive.name] for drive in self._drives]

    def _leave(self, threads: list[concurrent.futures.Future[None]]) -> None:
        with self._lock:
            self._left = True
            shells = list(self._shells)
        for shell in shells:
            shell.close()
        concurrent.futures.wait(threads, _LEAVE_SECONDS)

    def _take_drives(self) -> None:
        while not self._left:
            try:
                drive = self._waiting.popleft()
            except IndexError:  # none is left
                return
            outcome = self._do(drive)
            self._board.finish(outcome)
            self._done[drive.name] = outcome

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
        return VerbOutcome(
            outcome.drive, outcome.result, outcome.what, outcome.facts | {"wall_seconds": time.monotonic() - begin}
        )

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


DEFAULT_JOBS = 8


@dataclass(frozen=True)
class DeployRequest:
    """What the user asks for.

    Attributes:
        inventory: its file.
        verb: name of one of `host.deploy.verb_protocol.VERBS`.
        drives, groups: only those; empty: all. A drive that either names is chosen.
        jobs: at most so many drives at a time.
        dry_run: only say what would be done.
        seconds: that each drive may take; None: the verb's own.
        options: of the verb.
    """

    inventory: Path
    verb: str
    drives: Sequence[str] = ()
    groups: Sequence[str] = ()
    jobs: int = DEFAULT_JOBS
    dry_run: bool = False
    seconds: float | None = None
    options: VerbOptions = field(default_factory=VerbOptions)


def deploy(
    request: DeployRequest, paths: Paths, progress: Progress, board: Board, connect: OpenShell | None = None
) -> DeployReport:
    """Do the verb on the chosen drives; a drive on which it fails does not end it.

    Args:
        request: what to do.
        paths: of this server.
        progress: told of work on this server.
        board: told of work on the drives.
        connect: opens a shell on a drive; None: over SSH.

    Raises:
        ConfigurationError: the inventory, the verb or a name is wrong; no drive was spoken with.
        KeyboardInterrupt: Ctrl-C; connections are closed.
    """
    begin = time.monotonic()
    entry = find_verb(request.verb, request.options)
    if request.jobs < 1:
        raise ConfigurationError(f"deploy: --jobs must be 1 or more (it is {request.jobs})")
    inventory = load_inventory(request.inventory)
    former = [name for name in request.drives if entry.local and name not in inventory.drives]
    known = [name for name in request.drives if name not in former]
    drives = choose_drives(inventory, known, request.groups) if known or not former or request.groups else []
    drives += [former_drive(name) for name in former]
    named = bool(request.drives or request.groups)
    verb = prepare_verb(entry, VerbPlan(inventory, request.options, paths, request.dry_run, named))
    progress.stage("")
    batch = (request.options.batch or 1) if entry.rolling else None
    limits = Limits(request.jobs, request.seconds or entry.seconds, batch, request.dry_run)
    if entry.local:
        connect = _speak_with_none
    connect = connect or functools.partial(open_shell, write_keys=not request.dry_run)
    outcomes = run_verb(drives, verb, limits, board, connect)
    return DeployReport(inventory.name, request.verb, request.dry_run, outcomes, time.monotonic() - begin)


def prepare_verb(entry: VerbEntry, plan: VerbPlan) -> Verb:
    """Return what the verb does on each drive; may work on the server first, see its module."""
    module, _, name = entry.function.partition(":")
    found = getattr(importlib.import_module(module), name)
    verb: Verb = found if entry.plain else found(plan)
    return verb if plan.options.force or "force" not in entry.options else unless_lent(verb)


class _NoShell(Shell):
    """The shell of a verb that speaks with no drive."""

    def __init__(self, drive: DriveEntry) -> None:
        self.drive = drive

    def run(self, command: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> CommandResult:
        raise RuntimeError(f"a verb that speaks with no drive would run {command!r}")

    def copy(self, source: Path, target: PurePosixPath, deadline: Deadline, show: OnCopied, root: bool = False) -> None:
        raise RuntimeError(f"a verb that speaks with no drive would copy {source}")

    def forward(self, host: str, port: int, drive_port: int = 0) -> int:
        raise RuntimeError(f"a verb that speaks with no drive would forward port {port}")

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _speak_with_none(drive: DriveEntry, _: Deadline) -> AbstractContextManager[Shell]:
    return contextlib.nullcontext(_NoShell(drive))


def read_seconds(text: str) -> float:
    """Return a time limit that the user wrote, for example ``10 min``.

    Raises:
        ConfigurationError: it is no time, or none at all.
    """
    if (seconds := units.parse_quantity(text, units.SECONDS, "10 min")) <= 0:
        raise ConfigurationError(f"--timeout: must be more than nothing (it is {text!r})")
    return seconds


def choose_drives(inventory: Inventory, names: Iterable[str], groups: Iterable[str]) -> list[DriveEntry]:
    """Return the drives that are named or in a group that is; all if nothing is. In the order of the inventory.

    Raises:
        ConfigurationError: a drive or a group is not there, or nothing is chosen.
    """
    names, groups = list(names), list(groups)
    for kind, wanted, known in (("drive", names, [*inventory.drives]), ("group", groups, [*inventory.groups])):
        if (name := next((name for name in wanted if name not in known), None)) is not None:
            hint = hint_at(name, known, f"there are: {', '.join(known[:10]) or 'none'}")
            raise ConfigurationError(f"--{kind}s: the inventory has no {kind} {name!r}; {hint}")
    chosen = [
        drive
        for drive in inventory.list_drives()
        if not (names or groups) or drive.name in names or set(groups) & set(drive.groups)
    ]
    if not chosen:
        raise ConfigurationError(f"inventory {inventory.name}: no drive is in {', '.join(groups)}; name other groups")
    return chosen
