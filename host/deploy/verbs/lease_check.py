"""Respect for the array that a drive is lent to."""

from __future__ import annotations

from csd_emu.engines.remote.drive_slot import Slot
from firmware_agent.common.errors import DriveUnfit
from host.deploy.verb_protocol import DriveSite, Verb, VerbOutcome
from host.deploy.verbs.verb_table import VerbPlan


def unless_lent(plan: VerbPlan, verb: Verb) -> Verb:
    """Return the verb, which refuses a drive that is lent to an array that is up; with ``--force`` as it is."""
    if plan.options.force:
        return verb

    def guarded(site: DriveSite) -> VerbOutcome:
        refuse_lent(site)
        return verb(site)

    return guarded


def refuse_lent(site: DriveSite) -> None:
    """Raise if an array that is up uses the drive.

    Raises:
        DriveUnfit: says which array.
        DriveUnreachable: the connection broke.
    """
    try:
        lease = Slot(site.shell, site.layout).look().lease
    except DriveUnfit:  # what is damaged serves no array, and must be repaired or removed
        return
    if lease is not None:
        raise DriveUnfit(
            f"drive {site.drive.name}: is lent to array {lease.array!r} of {lease.server}; run csd-emu down "
            f"{lease.array} there first, or add --force, which takes the drive from it"
        )
