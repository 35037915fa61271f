"""The verbs ``install`` and ``upgrade``, and the time limit for every start of an agent.

A bundle is put onto a drive beside what is there, and switched to in one step. Whatever happens on the way, cut, power
failure, full disk, what was in use stays in use: nothing below ``versions`` and ``layers`` is ever incomplete, and the
next attempt goes on where this one ended.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from csd_emu.engines.remote.drive_layout import AGENT_USER
from csd_emu.engines.remote.drive_slot import AgentStatus, Control
from csd_emu.util.deadline import Deadline
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import CsdError, DriveUnfit, InstallFailed
from host.deploy.bundle.bundle import Bundle, BundleStore
from host.deploy.bundle.bundle_recipe import ROOTFS_PYTHON, Variant, WheelChoice
from host.deploy.compatibility import DriveRequirements, Form, judge
from host.deploy.drive_lock import held
from host.deploy.verb_protocol import DriveSite, Verb, VerbOutcome, VerbPlan, VerbResult
from host.deploy.verbs.enrol import recording
from host.deploy.verbs.installation import Installation, survey
from host.deploy.verbs.probe import read_facts


def prepare_install(plan: VerbPlan) -> Verb:
    """Return the verb ``install`` with the bundles of this server."""
    store = BundleStore(plan.paths.cache / "bundles", plan.paths.cache / "downloads")
    forced = None if plan.options.form is None else Form(plan.options.form)
    return Installer(functools.partial(choose, forced=forced), lambda variant: store.ensure(variant, Silent()))


def choose(site: DriveSite, forced: Form | None = None) -> WheelChoice:
    """Probe a drive and return the form that fits it; its space is counted later, when it is known what is there.

    Raises:
        DriveUnfit: none fits; says why and what to do.
    """
    needs = DriveRequirements(disk_bytes=dict.fromkeys(Form, 0))
    fitness = judge(read_facts(site.shell, site.drive, site.deadline), needs, time.time(), forced)
    if fitness.form is None:
        raise DriveUnfit(f"drive {site.drive.name}: does not fit: {'; '.join(fitness.problems)}")
    if fitness.python is None:
        return WheelChoice(Variant(fitness.form, ROOTFS_PYTHON), "")
    return WheelChoice(Variant(fitness.form, ".".join(map(str, fitness.python.version[:2]))), fitness.python.path)


@dataclass(frozen=True)
class Installer:
    """The verb ``install``.

    Attributes:
        choose: probes a drive and chooses the form; raises `DriveUnfit` where none fits.
        bundle: makes the bundle of a form, or returns that which was made; called from several threads.
        user: as whom the agent runs; made if there is none.
        now: monotonic seconds.
    """

    choose: Callable[[DriveSite], WheelChoice]
    bundle: Callable[[Variant], Bundle]
    user: str = AGENT_USER
    now: Callable[[], float] = time.monotonic

    def __call__(self, site: DriveSite) -> VerbOutcome:
        """Install on one drive; where it is installed already, nothing changes.

        Raises:
            DriveUnfit: the drive cannot have it: no form fits, or too little space.
            DriveUnreachable: the connection broke; what ran before still runs.
            InstallFailed: a step failed on the drive; what ran before still runs.
        """
        site.show("probe", None)
        choice = self.choose(site)
        bundle = self.bundle(choice.variant)
        work = Installation(site, choice, bundle, survey(site), self.user, self.now)
        if work.unchanged:
            return self._outcome(work, VerbResult.UNCHANGED, f"version {bundle.id} is installed")
        work.check_space()
        if site.dry_run:
            return self._outcome(work, VerbResult.PLANNED, work.plan())
        with held(site, work.make_folder()):
            # Another one may have been at it meanwhile.
            work = Installation(site, choice, bundle, survey(site), self.user, self.now)
            work.run()
        return self._outcome(work, VerbResult.DONE, f"version {bundle.id} installed")

    def _outcome(self, work: Installation, result: VerbResult, what: str) -> VerbOutcome:
        facts = {
            "version": work.bundle.id,
            "form": work.bundle.variant.form.value,
            "python": work.bundle.variant.python,
            "copied_bytes": work.copied_bytes,
            "copy_wall_seconds": round(work.copy_wall_seconds, 3),
        }
        return VerbOutcome(work.site.drive.name, result, what, facts)


ALIVE = ("running", "waiting")
_POLL_SECONDS = 1.0
ENDED = "the agent ended; see csd-emu deploy logs"


def prepare_upgrade(plan: VerbPlan) -> Verb:
    """Return the verb ``upgrade``."""
    return recording(plan, Upgrade(prepare_install(plan)))


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
        install: the verb (see `host.deploy.verbs.upgrade.Installer`).
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
            stopped = msgspec.structs.replace(done, what=f"{done.what}; the agent was stopped, and still is")
            return done if done.result is VerbResult.UNCHANGED else stopped
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


def _bare(site: DriveSite, error: CsdError) -> str:
    return str(error).removeprefix(f"drive {site.drive.name}: ")
