"""The verb ``revoke``: no certificate of a drive counts until it is enrolled again. No drive is spoken with."""

from __future__ import annotations

from csd_emu.engines.remote.inventory import DriveEntry
from firmware_agent.common.errors import ConfigurationError
from host.deploy.verb_protocol import DriveSite, Verb, VerbOutcome, VerbResult
from host.deploy.verbs.verb_table import VerbPlan
from host.fleet.certificate_serials import Serials
from host.fleet.enrolment_authority import authority_folder


def prepare(plan: VerbPlan) -> Verb:
    """Return the verb.

    Raises:
        ConfigurationError: no drive is named; this verb does not mean all where nothing is said.
    """
    if not plan.named:
        raise ConfigurationError(
            "deploy revoke: name the drives, as in csd-emu deploy INVENTORY.YAML revoke csd-00, or their --groups"
        )
    serials = Serials(authority_folder(plan.paths, plan.inventory.name))

    def revoke(site: DriveSite) -> VerbOutcome:
        name = site.drive.name
        if serials.find(name) == "":
            return VerbOutcome(name, VerbResult.UNCHANGED, "no certificate of it counts")
        if site.dry_run:
            return VerbOutcome(name, VerbResult.PLANNED, "would refuse every certificate that it has")
        serials.revoke(name)
        return VerbOutcome(name, VerbResult.DONE, "every certificate that it has is refused until it is enrolled again")

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
