"""The verbs of `csd-emu deploy`: one table, so that help, options and the frame know the same ones."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass, field

from csd_emu.engines.remote.inventory import DriveEntry, Inventory
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import ConfigurationError
from host.deploy.verb_protocol import Verb


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
        drives: those that were chosen.
        options: of this verb.
        paths: of this server.
        progress: for work on the server, a bundle for example.
        named: whether the user named drives or groups, or means all.
        dry_run: nothing may change on a drive, nor on the server but for downloads and bundles, which are made: what
            would be copied is known only then.
    """

    inventory: Inventory
    drives: list[DriveEntry]
    options: VerbOptions
    paths: Paths
    progress: Progress
    dry_run: bool
    named: bool = False


@dataclass(frozen=True)
class VerbEntry:
    """One verb.

    Attributes:
        module: has a function ``prepare(plan: Plan) -> Verb``, or another that is named after a colon; what it raises
            ends the command before any drive.
        help: one line.
        seconds: that it may take on one drive, unless the user says otherwise; wall time.
        rolling: one drive after the other, and none after the first failure.
        options: names of `VerbOptions` that it takes.
        columns: facts of its outcomes that the table shows.
        local: works on this server alone; no drive is spoken with, and it may be one that the inventory has no more.
    """

    module: str
    help: str
    seconds: float
    rolling: bool = False
    options: frozenset[str] = field(default=frozenset())
    columns: tuple[str, ...] = ()
    local: bool = False


_FORCE = frozenset({"force"})
VERBS: dict[str, VerbEntry] = {
    "probe": VerbEntry(
        "host.deploy.verbs.probe",
        "what the drive is, what does not fit, and how the agent would be installed; changes nothing",
        120.0,
        columns=(
            *("machine", "cores", "memory_bytes", "folder_free_bytes", "python", "libc", "init", "root"),
            *("upload_bytes_per_second", "download_bytes_per_second", "form"),
        ),
    ),
    "install": VerbEntry(
        "host.deploy.verbs.install",
        "put the agent of this csd-emu beside what is there, and switch to it; starts nothing",
        3600.0,
        options=frozenset({"form"}),
        columns=("version", "form", "copied_bytes", "copy_wall_seconds"),
    ),
    "enrol": VerbEntry(
        "host.deploy.verbs.enrol",
        "give the drive a certificate of this deployment's authority; a new one when it ends within 30 days",
        120.0,
        options=frozenset({"renew"}),
        columns=("expires",),
    ),
    "start": VerbEntry("host.deploy.verbs.service:prepare_start", "start the agent, now and after every boot", 300.0),
    "stop": VerbEntry(
        "host.deploy.verbs.service:prepare_stop", "stop the agent, now and after every boot", 120.0, options=_FORCE
    ),
    "status": VerbEntry(
        "host.deploy.verbs.service:prepare_status",
        "what the agent does",
        60.0,
        columns=("state", "version", "previous", "supervisor", "enrolled"),
    ),
    "logs": VerbEntry(
        "host.deploy.verbs.service:prepare_logs", "what the agent said", 60.0, options=frozenset({"lines"})
    ),
    "upgrade": VerbEntry(
        "host.deploy.verbs.upgrade",
        "install, restart, and go back if the new version does not run; one drive after the other",
        3600.0,
        rolling=True,
        options=frozenset({"form", "batch"}) | _FORCE,
        columns=("version", "form", "copied_bytes"),
    ),
    "rollback": VerbEntry(
        "host.deploy.verbs.service:prepare_rollback", "go back to the version before", 300.0, options=_FORCE
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
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(VERBS)}"
        raise ConfigurationError(f"deploy: there is no verb {name!r}; {hint}")
    for option in sorted(options.given() - VERBS[name].options):
        takers = [verb for verb, entry in VERBS.items() if option in entry.options]
        raise ConfigurationError(
            f"deploy {name}: takes no --{option}; leave it away ({', '.join(takers) or 'no verb'} does)"
        )
    return VERBS[name]


def prepare_verb(entry: VerbEntry, plan: VerbPlan) -> Verb:
    """Return what the verb does on each drive; may work on the server first, see its module."""
    module, _, function = entry.module.partition(":")
    made: Verb = getattr(importlib.import_module(module), function or "prepare")(plan)
    return made
