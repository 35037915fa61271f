"""Put a bundle onto a drive beside what is there, and switch to it in one step.

Whatever happens on the way, cut, power failure, full disk, what was in use stays in use: nothing below ``versions`` and
``layers`` is ever incomplete, and the next attempt goes on where this one ended.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

from csd_emu.engines.remote.drive_layout import AGENT_USER
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import DriveUnfit
from host.deploy.bundle.bundle import Bundle, BundleStore
from host.deploy.bundle.bundle_recipe import ROOTFS_PYTHON, Variant, WheelChoice
from host.deploy.compatibility import DriveRequirements, Form, judge
from host.deploy.drive_lock import held
from host.deploy.verb_protocol import DriveSite, Verb, VerbOutcome, VerbResult
from host.deploy.verbs.installation import Installation, survey
from host.deploy.verbs.probe import read_facts
from host.deploy.verbs.verb_table import VerbPlan


def prepare(plan: VerbPlan) -> Verb:
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
