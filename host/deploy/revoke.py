"""The verb ``revoke``: no certificate of a drive counts until it is enrolled again. No drive is spoken with."""

from __future__ import annotations

from csd_emu.remote.inventory import DriveEntry
from firmware_agent.errors import ConfigurationError
from host.deploy.enrol import authority_folder
from host.deploy.serials import Serials
from host.deploy.verbs import Plan
from host.deploy.work import Outcome, Result, Site, Verb


def prepare(plan: Plan) -> Verb:
    """Return the verb.

    Raises:
        ConfigurationError: no drive is named; this verb does not mean all where nothing is said.
    """
    if not plan.named:
        raise ConfigurationError(
            "deploy revoke: name the drives, as in csd-emu deploy INVENTORY.YAML revoke csd-00, or their --groups"
        )
    serials = Serials(authority_folder(plan.paths, plan.inventory.name))

    def revoke(site: Site) -> Outcome:
        name = site.drive.name
        if serials.find(name) == "":
            return Outcome(name, Result.UNCHANGED, "no certificate of it counts")
        if site.dry_run:
            return Outcome(name, Result.PLANNED, "would refuse every certificate that it has")
        serials.revoke(name)
        return Outcome(name, Result.DONE, "every certificate that it has is refused until it is enrolled again")

    return revoke


def former_drive(name: str) -> DriveEntry:
    """Return an entry for a drive that the inventory no longer has, such as one that was sold.

    Raises:
        ConfigurationError: it is no name of a drive.
    """
    rest = dict.fromkeys(set(DriveEntry.model_fields) - {"name", "host", "groups", "folder", "profile"})
    try:
        return DriveEntry(name=name, host=name, groups=[], folder="/", profile="", **rest)
    except ValueError as error:
        raise ConfigurationError(f"deploy revoke: {name!r} is no name of a drive") from error
