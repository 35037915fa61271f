"""Input and output of a verb of `csd-emu deploy`: for one drive, and the report over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from csd_emu.engines.remote.drive_layout import DriveLayout
from csd_emu.engines.remote.inventory import DriveEntry
from csd_emu.util.deadline import Deadline

if TYPE_CHECKING:
    from csd_emu.engines.remote.shell import Shell


class VerbResult(StrEnum):
    """How a verb ended on a drive."""

    DONE = "done"
    UNCHANGED = "unchanged"
    PLANNED = "planned"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class DriveSite:
    """One drive that a verb works on.

    Attributes:
        drive: the inventory's entry.
        shell: a connection that is open.
        layout: what lies where on it.
        deadline: by which the verb must be done with this drive.
        dry_run: only say what would be done; nothing on the drive may change.
        show: told what is being done, and how far it is (a share, or None).
    """

    drive: DriveEntry
    shell: Shell
    layout: DriveLayout
    deadline: Deadline
    dry_run: bool
    show: Callable[[str, float | None], None]


class VerbOutcome(msgspec.Struct, frozen=True):
    """How the verb ended on one drive.

    Attributes:
        result: ``done``, ``unchanged``, ``planned`` (a dry run), ``skipped`` or ``failed``.
        what: one line: what was done, or what went wrong and what to do.
        facts: what the verb found or did, by name; times are wall seconds of this server.
    """

    drive: str
    result: VerbResult
    what: str
    facts: dict[str, Any] = {}


Verb = Callable[[DriveSite], VerbOutcome]
"""Works on one drive, in a thread of its own. Raises `CsdError`, which becomes the outcome ``failed``."""


FINE, FAILED = 0, 1


class DeployReport(msgspec.Struct, frozen=True):
    """`csd-emu deploy`: how a verb ended on each drive."""

    inventory: str
    verb: str
    dry_run: bool
    drives: list[VerbOutcome]
    wall_seconds: float


def exit_code(report: DeployReport) -> int:
    """Return 0 if all went well on every drive, else 1; bad input has ended the command before, with 2."""
    return FAILED if any(drive.result in (VerbResult.FAILED, VerbResult.SKIPPED) for drive in report.drives) else FINE
