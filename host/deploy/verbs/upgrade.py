"""The verb ``upgrade``, and the time limit for every start of an agent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from csd_emu.engines.remote.agent_control import AgentStatus, Control
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import CsdError, DriveUnfit, InstallFailed
from host.deploy.verb_protocol import DriveSite, Verb, VerbOutcome, VerbResult
from host.deploy.verbs import install
from host.deploy.verbs.enrol import recording
from host.deploy.verbs.lease_check import unless_lent
from host.deploy.verbs.verb_table import VerbPlan

ALIVE = ("running", "waiting")
_POLL_SECONDS = 1.0
ENDED = "the agent ended; see csd-emu deploy logs"


def prepare(plan: VerbPlan) -> Verb:
    """Return the verb ``upgrade``."""
    return unless_lent(plan, recording(plan, Upgrade(install.prepare(plan))))


@dataclass(frozen=True)
class Patience:
    """How long a version may take until it says what it does.

    Attributes:
        seconds: at most.
        wait: called between two looks, with seconds.
    """

    seconds: float = 300.0
    wait: Callable[[float], object] = threading.Event().wait

    def settle(self, site: DriveSite, failed_before: bool = False) -> AgentStatus:
        """Return once the agent of the version in use has said what it does.

        Args:
            site: the drive.
            failed_before: accept that it says ``failed``: so did the one before it, so it is not the version's fault.

        Raises:
            InstallFailed: it ended, failed, or said nothing.
        """
        control = Control(site.shell, site.layout)
        deadline = Deadline(min(self.seconds, 0.9 * site.deadline.left_seconds))
        while True:
            found = control.status(site.deadline)
            if found.pid and found.running == found.version and (found.state in ALIVE or failed_before):
                return found
            if found.state not in ALIVE:
                said = f"{found.state}: {found.what}" if found.what else ENDED
                raise InstallFailed(f"drive {site.drive.name}: {said}")
            if deadline.expired:
                raise InstallFailed(f"drive {site.drive.name}: it said nothing; see csd-emu deploy logs")
            self.wait(_POLL_SECONDS)


@dataclass(frozen=True)
class Upgrade:
    """The verb ``upgrade``: install, restart, wait until the agent runs; else go back to the version before.

    Attributes:
        install: the verb (see `host.deploy.verbs.install.Installer`).
        patience: with the new version, and with the one before.
    """

    install: Verb
    patience: Patience = Patience()

    def __call__(self, site: DriveSite) -> VerbOutcome:
        """Upgrade one drive.

        Raises:
            InstallFailed: the new version does not run; what runs instead is said.
            CsdError: what `install` raises; nothing was changed.
        """
        before = Control(site.shell, site.layout).status(site.deadline)
        done = self.install(site)
        if site.dry_run or (done.result is VerbResult.UNCHANGED and before.running == before.version):
            return done
        if before.state == "stopped":
            return done if done.result is VerbResult.UNCHANGED else _say(done, "the agent was stopped, and still is")
        site.show("restart", None)
        try:
            Control(site.shell, site.layout).do("restart", site.deadline)
            after = self.patience.settle(site, before.state == "failed")
        except CsdError as error:
            raise InstallFailed(
                f"drive {site.drive.name}: version {done.facts['version']} did not run ({_bare(site, error)}); "
                f"{self._go_back(site)}"
            ) from error
        return msgspec.structs.replace(
            done,
            result=VerbResult.DONE,
            what=f"upgraded from {before.running or before.previous or 'nothing'} to {after.version}",
        )

    def _go_back(self, site: DriveSite) -> str:
        control = Control(site.shell, site.layout)
        try:
            control.do("rollback", site.deadline)
        except DriveUnfit as error:
            return _bare(site, error)
        control.do("restart", site.deadline)
        try:
            return f"went back to {self.patience.settle(site, failed_before=True).version}"
        except InstallFailed as error:
            version = control.status(site.deadline).version
            return f"went back to {version}, which does not run either ({_bare(site, error)})"


def _say(outcome: VerbOutcome, more: str) -> VerbOutcome:
    return msgspec.structs.replace(outcome, what=f"{outcome.what}; {more}")


def _bare(site: DriveSite, error: CsdError) -> str:
    return str(error).removeprefix(f"drive {site.drive.name}: ")
