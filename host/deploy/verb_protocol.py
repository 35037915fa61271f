"""The verbs of `csd-emu deploy`: one table for help, options and frame; input and output of one, and the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from csd_emu.engines.remote.drive_layout import DriveLayout
from csd_emu.engines.remote.inventory import DriveEntry, Inventory
from csd_emu.util.deadline import Deadline
from csd_emu.util.nearest_word import hint_at
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError

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


@dataclass(frozen=True)
class VerbOptions:
    """Options that only some verbs take; None: not given.

    Attributes:
        lines: `logs`: how many.
        form: `install`, `upgrade`: ``wheels`` or ``rootfs`` in place of the one that fits the drive.
        batch: `upgrade`: how many drives at a time.
        renew: `enrol`: give a new certificate even to a drive that has a good one.
        force: `stop`, `upgrade`, `rollback`, `uninstall`: even while the drive is lent to an array that is up.
    """

    lines: int | None = None
    form: str | None = None
    batch: int | None = None
    renew: bool | None = None
    force: bool | None = None

    def given(self) -> set[str]:
        """Return the names of those that are given."""
        return {name for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class VerbPlan:
    """What a verb's module gets before any drive is spoken with.

    Attributes:
        inventory: whole.
        options: of this verb.
        paths: of this server.
        named: whether the user named drives or groups, or means all.
        dry_run: nothing may change on a drive, nor on the server but for downloads and bundles, which are made: what
            would be copied is known only then.
    """

    inventory: Inventory
    options: VerbOptions
    paths: Paths
    dry_run: bool
    named: bool = False


@dataclass(frozen=True)
class VerbEntry:
    """One verb.

    Attributes:
        function: ``module:name`` of a function from `VerbPlan` to `Verb`, or with `plain` of the verb itself; what it
            raises ends the command before any drive.
        help: one line.
        seconds: that it may take on one drive, unless the user says otherwise; wall time.
        rolling: one drive after the other, and none after the first failure.
        options: names of `VerbOptions` that it takes; with ``force`` it refuses a drive that is lent to an array.
        columns: facts of its outcomes that the table shows.
        plain: needs nothing of the server.
        local: works on this server alone; no drive is spoken with, and it may be one that the inventory has no more.
    """

    function: str
    help: str
    seconds: float
    rolling: bool = False
    options: frozenset[str] = field(default=frozenset())
    columns: tuple[str, ...] = ()
    local: bool = False
    plain: bool = False


_FORCE = frozenset({"force"})
VERBS: dict[str, VerbEntry] = {
    "probe": VerbEntry(
        "host.deploy.verbs.probe:probe",
        "what the drive is, what does not fit, and how the agent would be installed; changes nothing",
        120.0,
        columns=(
            *("machine", "cores", "memory_bytes", "folder_free_bytes", "python", "libc", "init", "root"),
            *("upload_bytes_per_second", "download_bytes_per_second", "form"),
        ),
        plain=True,
    ),
    "install": VerbEntry(
        "host.deploy.verbs.upgrade:prepare_install",
        "put the agent of this csd-emu beside what is there, and switch to it; starts nothing",
        3600.0,
        options=frozenset({"form"}),
        columns=("version", "form", "copied_bytes", "copy_wall_seconds"),
    ),
    "enrol": VerbEntry(
        "host.deploy.verbs.enrol:prepare_enrol",
        "give the drive a certificate of this deployment's authority; a new one when it ends within 30 days",
        120.0,
        options=frozenset({"renew"}),
        columns=("expires",),
    ),
    "start": VerbEntry(
        "host.deploy.verbs.service:start", "start the agent, now and after every boot", 300.0, plain=True
    ),
    "stop": VerbEntry(
        "host.deploy.verbs.service:stop",
        "stop the agent, now and after every boot",
        120.0,
        options=_FORCE,
        plain=True,
    ),
    "status": VerbEntry(
        "host.deploy.verbs.service:status",
        "what the agent does",
        60.0,
        columns=("state", "version", "previous", "supervisor", "enrolled"),
        plain=True,
    ),
    "logs": VerbEntry(
        "host.deploy.verbs.service:prepare_logs", "what the agent said", 60.0, options=frozenset({"lines"})
    ),
    "upgrade": VerbEntry(
        "host.deploy.verbs.upgrade:prepare_upgrade",
        "install, restart, and go back if the new version does not run; one drive after the other",
        3600.0,
        rolling=True,
        options=frozenset({"form", "batch"}) | _FORCE,
        columns=("version", "form", "copied_bytes"),
    ),
    "rollback": VerbEntry(
        "host.deploy.verbs.service:rollback", "go back to the version before", 300.0, options=_FORCE, plain=True
    ),
    "uninstall": VerbEntry(
        "host.deploy.verbs.service:prepare_uninstall", "stop the agent and remove all of it", 300.0, options=_FORCE
    ),
    "revoke": VerbEntry(
        "host.deploy.verbs.enrol:prepare_revoke",
        "refuse every certificate that the drive has; speaks with no drive",
        60.0,
        local=True,
    ),
}


def find_verb(name: str, options: VerbOptions) -> VerbEntry:
    """Return the verb called `name`.

    Raises:
        ConfigurationError: there is none, or it does not take an option that is given.
    """
    if name not in VERBS:
        hint = hint_at(name, VERBS, f"choose one of: {', '.join(VERBS)}")
        raise ConfigurationError(f"deploy: there is no verb {name!r}; {hint}")
    for option in sorted(options.given() - VERBS[name].options):
        takers = [verb for verb, entry in VERBS.items() if option in entry.options]
        raise ConfigurationError(
            f"deploy {name}: takes no --{option}; leave it away ({', '.join(takers) or 'no verb'} does)"
        )
    return VERBS[name]
