"""The verbs that speak with the agent of a drive: start, stop, status, logs, upgrade, rollback, uninstall."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from csd_emu.deadline import Deadline
from csd_emu.remote.control import AgentStatus, Control
from firmware_agent.errors import CsdError, DriveUnfit, InstallFailed
from host.deploy import install
from host.deploy.install import survey
from host.deploy.recipe import default_folder
from host.deploy.verbs import Plan
from host.deploy.work import Outcome, Result, Site, Verb

DEFAULT_LINES = 200
ALIVE = ("running", "waiting")
_POLL_SECONDS = 1.0
_ENDED = "the agent ended; see csd-emu deploy logs"


@dataclass(frozen=True)
class Patience:
    """How long a version may take until it says what it does.

    Attributes:
        seconds: at most.
        wait: called between two looks, with seconds.
    """

    seconds: float = 300.0
    wait: Callable[[float], object] = threading.Event().wait

    def settle(self, site: Site, failed_before: bool = False) -> AgentStatus:
        """Return once the agent of the version in use has said what it does.

        Args:
            site: the drive.
            failed_before: accept that it says ``failed``: so did the one before it, so it is not the version's fault.

        Raises:
            InstallFailed: it ended, failed, or said nothing.
        """
        control = _control(site)
        deadline = Deadline(min(self.seconds, 0.9 * site.deadline.left_seconds))
        while True:
            found = control.status(site.deadline)
            if found.pid and found.running == found.version and (found.state in ALIVE or failed_before):
                return found
            if found.state not in ALIVE:
                said = f"{found.state}: {found.what}" if found.what else _ENDED
                raise InstallFailed(f"drive {site.drive.name}: {said}")
            if deadline.expired:
                raise InstallFailed(f"drive {site.drive.name}: it said nothing; see csd-emu deploy logs")
            self.wait(_POLL_SECONDS)


def prepare_start(_: Plan) -> Verb:
    """Return the verb ``start``."""
    return start


def prepare_stop(_: Plan) -> Verb:
    """Return the verb ``stop``."""
    return stop


def prepare_status(_: Plan) -> Verb:
    """Return the verb ``status``."""
    return status


def prepare_logs(plan: Plan) -> Verb:
    """Return the verb ``logs``."""
    return make_logs(plan.options.lines or DEFAULT_LINES)


def prepare_upgrade(plan: Plan) -> Verb:
    """Return the verb ``upgrade``."""
    return Upgrade(install.prepare(plan))


def prepare_rollback(_: Plan) -> Verb:
    """Return the verb ``rollback``."""
    return rollback


def prepare_uninstall(_: Plan) -> Verb:
    """Return the verb ``uninstall``."""
    return uninstall


def start(site: Site, patience: Patience = Patience()) -> Outcome:
    """Start the agent, now and after every boot, and wait until it says what it does.

    Raises:
        InstallFailed: it does not run.
    """
    before = _installed(site)
    # One that has just been started has not said yet which version it is.
    if before.state in ALIVE and before.running in ("", before.version):
        return _outcome(site, Result.UNCHANGED, f"the agent runs already ({before.state})", before)
    if site.dry_run:
        return _outcome(site, Result.PLANNED, f"would start version {before.version}", before)
    site.show("start", None)
    _control(site).do("start" if before.state == "stopped" else "restart", site.deadline)
    after = patience.settle(site)
    boot = (
        "; nothing starts it after a boot of this drive: run this again then" if after.supervisor == "process" else ""
    )
    return _outcome(site, Result.DONE, f"version {before.version} started{boot}", after)


def stop(site: Site) -> Outcome:
    """Stop the agent, now and after every boot."""
    before = _installed(site)
    if before.state == "stopped":
        return _outcome(site, Result.UNCHANGED, "the agent does not run", before)
    if site.dry_run:
        return _outcome(site, Result.PLANNED, "would stop the agent", before)
    site.show("stop", None)
    control = _control(site)
    control.do("stop", site.deadline)
    return _outcome(site, Result.DONE, "stopped", control.status(site.deadline))


def status(site: Site) -> Outcome:
    """Say what the agent does."""
    found = _control(site).status(site.deadline)
    if not found.version:
        return _outcome(site, Result.DONE, "nothing is installed", found)
    if found.state == "running":
        what = f"running for array {found.array} as {found.device}"
    else:
        what = f"{found.state}: {found.what}" if found.what else found.state
    if found.state == "failed":
        return _outcome(site, Result.FAILED, what if found.what else f"failed: {_ENDED}", found)
    return _outcome(site, Result.DONE, what, found)


def make_logs(lines: int) -> Verb:
    """Return the verb that shows the last lines that the agent wrote, in the fact ``text``."""

    def logs(site: Site) -> Outcome:
        _installed(site)
        text = _control(site).do(f"logs {lines}", site.deadline)
        return Outcome(site.drive.name, Result.DONE, f"{len(text.splitlines())} lines", {"text": text})

    return logs


def rollback(site: Site, patience: Patience = Patience()) -> Outcome:
    """Go back to the version before, and restart it unless the agent was stopped.

    Raises:
        InstallFailed: it does not run.
    """
    before = _installed(site)
    if not before.previous or before.previous == before.version:
        raise DriveUnfit(
            f"drive {site.drive.name}: there is no previous version to go back to; install the one you want"
        )
    if site.dry_run:
        return _outcome(site, Result.PLANNED, f"would go back from {before.version} to {before.previous}", before)
    site.show("rollback", None)
    control = _control(site)
    control.do("rollback", site.deadline)
    if before.state != "stopped":
        control.do("restart", site.deadline)
        after = patience.settle(site, before.state == "failed")
    else:
        after = control.status(site.deadline)
    return _outcome(site, Result.DONE, f"went back from {before.version} to {after.version}", after)


def uninstall(site: Site) -> Outcome:
    """Stop the agent and remove all that was put onto the drive."""
    folder = shlex.quote(str(site.layout.folder))
    found = survey(site)
    if found.foreign:
        raise DriveUnfit(f"drive {site.drive.name}: {site.layout.folder} is not csd-emu's; nothing was removed")
    here = site.shell.run(f"[ -f {folder}/.csd-emu ]", site.deadline, root=True)
    if here.code:
        return Outcome(site.drive.name, Result.UNCHANGED, "nothing is installed")
    if site.dry_run:
        return Outcome(site.drive.name, Result.PLANNED, f"would stop the agent and remove {site.layout.folder}")
    site.show("uninstall", None)
    # This server's own script: that of the drive goes with its folder, and after a cut may be gone.
    script = (default_folder() / "csd-agent").read_bytes()
    command = f'cd / && text=$(cat) && exec sh -c "$text" csd-agent -C {folder} remove'
    answer = site.shell.run(command, site.deadline, script, root=True)
    if answer.code:
        lines = answer.err.strip().splitlines() or [f"exit code {answer.code}"]
        raise InstallFailed(f"drive {site.drive.name}: not all was removed: {lines[-1]}; run it again")
    return Outcome(site.drive.name, Result.DONE, f"stopped, and removed {site.layout.folder}")


@dataclass(frozen=True)
class Upgrade:
    """The verb ``upgrade``: install, restart, wait until the agent runs; else go back to the version before.

    Attributes:
        install: the verb (see `host.deploy.install.Installer`).
        patience: with the new version, and with the one before.
    """

    install: Verb
    patience: Patience = Patience()

    def __call__(self, site: Site) -> Outcome:
        """Upgrade one drive.

        Raises:
            InstallFailed: the new version does not run; what runs instead is said.
            CsdError: what `install` raises; nothing was changed.
        """
        before = _control(site).status(site.deadline)
        done = self.install(site)
        if site.dry_run or (done.result is Result.UNCHANGED and before.running == before.version):
            return done
        if before.state == "stopped":
            return done if done.result is Result.UNCHANGED else _say(done, "the agent was stopped, and still is")
        site.show("restart", None)
        try:
            _control(site).do("restart", site.deadline)
            after = self.patience.settle(site, before.state == "failed")
        except CsdError as error:
            raise InstallFailed(
                f"drive {site.drive.name}: version {done.facts['version']} did not run ({_bare(site, error)}); "
                f"{self._go_back(site)}"
            ) from error
        return replace(
            done,
            result=Result.DONE,
            what=f"upgraded from {before.running or before.previous or 'nothing'} to {after.version}",
        )

    def _go_back(self, site: Site) -> str:
        control = _control(site)
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


def _control(site: Site) -> Control:
    return Control(site.shell, site.layout)


def _installed(site: Site) -> AgentStatus:
    found = _control(site).status(site.deadline)
    if not found.version:
        raise DriveUnfit(f"drive {site.drive.name}: nothing is installed; run csd-emu deploy install")
    return found


def _outcome(site: Site, result: Result, what: str, found: AgentStatus) -> Outcome:
    facts: dict[str, Any] = msgspec.structs.asdict(found)
    return Outcome(site.drive.name, result, what, facts)


def _say(outcome: Outcome, more: str) -> Outcome:
    return replace(outcome, what=f"{outcome.what}; {more}")


def _bare(site: Site, error: CsdError) -> str:
    return str(error).removeprefix(f"drive {site.drive.name}: ")
