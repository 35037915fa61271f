"""Respect for the array that a drive is lent to."""

from __future__ import annotations

from csd_emu.remote.slot import Slot
from firmware_agent.errors import DriveUnfit
from host.deploy.verbs import Plan
from host.deploy.work import Outcome, Site, Verb


def unless_lent(plan: Plan, verb: Verb) -> Verb:
    """Return the verb, which refuses a drive that is lent to an array that is up; with ``--force`` as it is."""
    if plan.options.force:
        return verb

    def guarded(site: Site) -> Outcome:
        refuse_lent(site)
        return verb(site)

    return guarded


def refuse_lent(site: Site) -> None:
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
