"""The verbs that speak with the agent of a drive: start, stop, status, logs, rollback, uninstall."""

from __future__ import annotations

import shlex

import msgspec

from csd_emu.engines.remote.drive_slot import AgentStatus, Control
from firmware_agent.common.errors import DriveUnfit, InstallFailed
from host.deploy.bundle.bundle_recipe import default_folder
from host.deploy.drive_lock import held
from host.deploy.verb_protocol import DriveSite, Verb, VerbOutcome, VerbPlan, VerbResult
from host.deploy.verbs.enrol import revoking
from host.deploy.verbs.installation import survey
from host.deploy.verbs.upgrade import ALIVE, ENDED, Patience

DEFAULT_LINES = 200


def start(site: DriveSite) -> VerbOutcome:
    """Start the agent, now and after every boot, and wait until it says what it does.

    Raises:
        InstallFailed: it does not run.
    """
    before = _installed(site)
    # One that has just been started has not said yet which version it is.
    if before.state in ALIVE and before.running in ("", before.version):
        return _outcome(site, VerbResult.UNCHANGED, f"the agent runs already ({before.state})", before)
    if site.dry_run:
        return _outcome(site, VerbResult.PLANNED, f"would start version {before.version}", before)
    site.show("start", None)
    _control(site).do("start" if before.state == "stopped" else "restart", site.deadline)
    after = Patience().settle(site)
    boot = (
        "; nothing starts it after a boot of this drive: run this again then" if after.supervisor == "process" else ""
    )
    return _outcome(site, VerbResult.DONE, f"version {before.version} started{boot}", after)


def stop(site: DriveSite) -> VerbOutcome:
    """Stop the agent, now and after every boot."""
    if (before := _installed(site)).state == "stopped":
        return _outcome(site, VerbResult.UNCHANGED, "the agent does not run", before)
    if site.dry_run:
        return _outcome(site, VerbResult.PLANNED, "would stop the agent", before)
    site.show("stop", None)
    control = _control(site)
    control.do("stop", site.deadline)
    return _outcome(site, VerbResult.DONE, "stopped", control.status(site.deadline))


def status(site: DriveSite) -> VerbOutcome:
    """Say what the agent does."""
    if not (found := _control(site).status(site.deadline)).version:
        return _outcome(site, VerbResult.DONE, "nothing is installed", found)
    if found.state == "running":
        what = f"running for array {found.array} as {found.device}"
    else:
        what = f"{found.state}: {found.what}" if found.what else found.state
    if found.state == "failed":
        return _outcome(site, VerbResult.FAILED, what if found.what else f"failed: {ENDED}", found)
    return _outcome(site, VerbResult.DONE, what, found)


def prepare_logs(plan: VerbPlan) -> Verb:
    """Return the verb ``logs``: it shows the last lines that the agent wrote, in the fact ``text``."""

    def logs(site: DriveSite) -> VerbOutcome:
        _installed(site)
        text = _control(site).do(f"logs {plan.options.lines or DEFAULT_LINES}", site.deadline)
        return VerbOutcome(site.drive.name, VerbResult.DONE, f"{len(text.splitlines())} lines", {"text": text})

    return logs


def rollback(site: DriveSite) -> VerbOutcome:
    """Go back to the version before, and restart it unless the agent was stopped.

    Raises:
        InstallFailed: it does not run.
    """
    if not (before := _installed(site)).previous or before.previous == before.version:
        raise DriveUnfit(
            f"drive {site.drive.name}: there is no previous version to go back to; install the one you want"
        )
    if site.dry_run:
        return _outcome(site, VerbResult.PLANNED, f"would go back from {before.version} to {before.previous}", before)
    site.show("rollback", None)
    control = _control(site)
    control.do("rollback", site.deadline)
    if before.state != "stopped":
        control.do("restart", site.deadline)
        after = Patience().settle(site, before.state == "failed")
    else:
        after = control.status(site.deadline)
    return _outcome(site, VerbResult.DONE, f"went back from {before.version} to {after.version}", after)


def prepare_uninstall(plan: VerbPlan) -> Verb:
    """Return the verb ``uninstall``, after which no certificate of the drive counts."""
    return revoking(plan, uninstall)


def uninstall(site: DriveSite) -> VerbOutcome:
    """Stop the agent and remove all that was put onto the drive."""
    folder = shlex.quote(str(site.layout.folder))
    if survey(site).foreign:
        raise DriveUnfit(f"drive {site.drive.name}: {site.layout.folder} is not csd-emu's; nothing was removed")
    if site.shell.run(f"[ -f {folder}/.csd-emu ]", site.deadline, root=True).code:
        return VerbOutcome(site.drive.name, VerbResult.UNCHANGED, "nothing is installed")
    if site.dry_run:
        return VerbOutcome(site.drive.name, VerbResult.PLANNED, f"would stop the agent and remove {site.layout.folder}")
    site.show("uninstall", None)
    # This server's own script: that of the drive goes with its folder, and after a cut may be gone.
    script = (default_folder() / "csd-agent").read_bytes()
    command = f'cd / && text=$(cat) && exec sh -c "$text" csd-agent -C {folder} remove'
    with held(site):
        answer = site.shell.run(command, site.deadline, script, root=True)
    if answer.code:
        lines = answer.err.strip().splitlines() or [f"exit code {answer.code}"]
        raise InstallFailed(f"drive {site.drive.name}: not all was removed: {lines[-1]}; run it again")
    return VerbOutcome(site.drive.name, VerbResult.DONE, f"stopped, and removed {site.layout.folder}")


def _control(site: DriveSite) -> Control:
    return Control(site.shell, site.layout)


def _installed(site: DriveSite) -> AgentStatus:
    if not (found := _control(site).status(site.deadline)).version:
        raise DriveUnfit(f"drive {site.drive.name}: nothing is installed; run csd-emu deploy install")
    return found


def _outcome(site: DriveSite, result: VerbResult, what: str, found: AgentStatus) -> VerbOutcome:
    return VerbOutcome(site.drive.name, result, what, msgspec.structs.asdict(found))
