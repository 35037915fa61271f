"""`csd-emu deploy`: choose drives of an inventory, and do a verb on them."""

from __future__ import annotations

import contextlib
import difflib
import functools
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from csd_emu.engines.remote.inventory import DriveEntry, Inventory, load_inventory
from csd_emu.engines.remote.local_shell import LocalShell
from csd_emu.engines.remote.shell import Shell, open_shell
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common import units
from firmware_agent.common.errors import ConfigurationError
from host.deploy.parallel import Board, Limits, OpenShell, run_verb
from host.deploy.verb_protocol import DeployReport
from host.deploy.verbs.enrol import former_drive
from host.deploy.verbs.verb_table import VerbOptions, VerbPlan, find_verb, prepare_verb

DEFAULT_JOBS = 8


@dataclass(frozen=True)
class DeployRequest:
    """What the user asks for.

    Attributes:
        inventory: its file.
        verb: name of one of `host.deploy.verbs.verb_table.VERBS`.
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
    verb = prepare_verb(entry, VerbPlan(inventory, drives, request.options, paths, progress, request.dry_run, named))
    progress.stage("")
    batch = (request.options.batch or 1) if entry.rolling else None
    limits = Limits(request.jobs, request.seconds or entry.seconds, batch, request.dry_run)
    if entry.local:
        connect = _speak_with_none
    connect = connect or functools.partial(open_shell, write_keys=not request.dry_run)
    outcomes = run_verb(drives, verb, limits, board, connect)
    return DeployReport(inventory.name, request.verb, request.dry_run, outcomes, time.monotonic() - begin)


def _speak_with_none(drive: DriveEntry, _: Deadline) -> AbstractContextManager[Shell]:
    def refuse(command: str) -> None:
        raise RuntimeError(f"a verb that speaks with no drive would run {command!r}")

    return contextlib.nullcontext(LocalShell(drive, {}, before=refuse))


def read_seconds(text: str) -> float:
    """Return a time limit that the user wrote, for example ``10 min``.

    Raises:
        ConfigurationError: it is no time, or none at all.
    """
    seconds = units.parse_quantity(text, units.SECONDS, "10 min")
    if seconds <= 0:
        raise ConfigurationError(f"--timeout: must be more than nothing (it is {text!r})")
    return seconds


def choose_drives(inventory: Inventory, names: Iterable[str], groups: Iterable[str]) -> list[DriveEntry]:
    """Return the drives that are named or in a group that is; all if nothing is. In the order of the inventory.

    Raises:
        ConfigurationError: a drive or a group is not there, or nothing is chosen.
    """
    names, groups = list(names), list(groups)
    for name in names:
        _check(name, "drive", list(inventory.drives))
    for group in groups:
        _check(group, "group", list(inventory.groups))
    chosen = [
        drive
        for drive in inventory.list_drives()
        if not (names or groups) or drive.name in names or set(groups) & set(drive.groups)
    ]
    if not chosen:
        raise ConfigurationError(f"inventory {inventory.name}: no drive is in {', '.join(groups)}; name other groups")
    return chosen


def _check(name: str, kind: str, known: list[str]) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known[:10]) or 'none'}"
    raise ConfigurationError(f"--{kind}s: the inventory has no {kind} {name!r}; {hint}")
