"""The verbs that speak with the agent of a drive: start, stop, status, logs, rollback, uninstall."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from csd_emu.remote.control import AgentStatus, Control
from firmware_agent.errors import DriveUnfit, InstallFailed
from host.deploy.enrol import revoking
from host.deploy.lent import unless_lent
from host.deploy.lock import held
from host.deploy.recipe import default_folder
from host.deploy.survey import survey
from host.deploy.upgrade import ALIVE, ENDED, Patience
from host.deploy.verbs import Plan
from host.deploy.work import Outcome, Result, Site, Verb

DEFAULT_LINES = 200


def prepare_start(_: Plan) -> Verb:
    """Return the verb ``start``."""
    return start


def prepare_stop(plan: Plan) -> Verb:
    """Return the verb ``stop``."""
    return unless_lent(plan, stop)


def prepare_status(_: Plan) -> Verb:
    """Return the verb ``status``."""
    return status


def prepare_logs(plan: Plan) -> Verb:
    """Return the verb ``logs``."""
    return make_logs(plan.options.lines or DEFAULT_LINES)


def prepare_rollback(plan: Plan) -> Verb:
    """Return the verb ``rollback``."""
    return unless_lent(plan, rollback)


def prepare_uninstall(plan: Plan) -> Verb:
    """Return the verb ``uninstall``."""
    return unless_lent(plan, revoking(plan, uninstall))


def start(site: Site) -> Outcome:
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
    after = Patience().settle(site)
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
        return _outcome(site, Result.FAILED, what if found.what else f"failed: {ENDED}", found)
    return _outcome(site, Result.DONE, what, found)


def make_logs(lines: int) -> Verb:
    """Return the verb that shows the last lines that the agent wrote, in the fact ``text``."""

    def logs(site: Site) -> Outcome:
        _installed(site)
        text = _control(site).do(f"logs {lines}", site.deadline)
        return Outcome(site.drive.name, Result.DONE, f"{len(text.splitlines())} lines", {"text": text})

    return logs


def rollback(site: Site) -> Outcome:
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
        after = Patience().settle(site, before.state == "failed")
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
    with held(site):
        answer = site.shell.run(command, site.deadline, script, root=True)
    if answer.code:
        lines = answer.err.strip().splitlines() or [f"exit code {answer.code}"]
        raise InstallFailed(f"drive {site.drive.name}: not all was removed: {lines[-1]}; run it again")
    return Outcome(site.drive.name, Result.DONE, f"stopped, and removed {site.layout.folder}")


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
