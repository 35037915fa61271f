"""What a verb of `csd-emu deploy` gets for one drive, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from csd_emu.deadline import Deadline
from csd_emu.remote.inventory import DriveEntry
from csd_emu.remote.layout import Layout

if TYPE_CHECKING:  # SSH takes 0.3 s to import, of every command
    from csd_emu.remote.shell import Shell


class Result(Enum):
    """How a verb ended on a drive."""

    DONE = "done"
    UNCHANGED = "unchanged"
    PLANNED = "planned"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class Site:
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
    layout: Layout
    deadline: Deadline
    dry_run: bool
    show: Callable[[str, float | None], None]


@dataclass(frozen=True)
class Outcome:
    """How a verb ended on one drive.

    Attributes:
        drive: its name.
        result: how.
        what: one line for the table: what was done, would be done, or went wrong with its remedy.
        facts: for `--json` and columns of the table: versions, seconds, bytes...
    """

    drive: str
    result: Result
    what: str
    facts: dict[str, Any] = field(default_factory=dict)


Verb = Callable[[Site], Outcome]
"""Works on one drive, in a thread of its own. Raises `CsdError`, which becomes the outcome ``failed``."""
