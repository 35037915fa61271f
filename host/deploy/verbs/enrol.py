"""The verbs ``enrol`` and ``revoke``: certificates of a deployment's own authority on its drives, and their end."""

from __future__ import annotations

import datetime
import functools
import secrets
import shlex
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from csd_emu.engines.remote.drive_slot import Control
from csd_emu.engines.remote.inventory import DEFAULT_PROFILE, DriveEntry
from firmware_agent.common.errors import ConfigurationError, DriveUnfit
from firmware_agent.common.identity import Identity, write_identity
from host.deploy.verb_protocol import DriveSite, Verb, VerbOutcome, VerbPlan, VerbResult
from host.fleet.certificates import Authority, Credential, serial_of
from host.fleet.enrolment_authority import (
    ENROLLED_LIFETIME,
    RENEW_BEFORE,
    Serials,
    authority_folder,
    has_authority,
    open_authority,
)

_ENTROPY_BYTES = 64
_FIND_CERTIFICATE = r"""sed -n 's/^.*"certificate_pem":"\([^"]*\)".*$/\1/p'"""


def prepare_enrol(plan: VerbPlan) -> Verb:
    """Return the verb; makes the deployment's authority if there is none, unless nothing may change."""
    folder = authority_folder(plan.paths, plan.inventory.name)
    name, serials, new = plan.inventory.name, Serials(folder), not has_authority(folder)
    if plan.dry_run and new:
        return functools.partial(enrol, authority=Authority(name), serials=serials, name=name, renew=True)
    authority, renew = open_authority(folder, name), bool(plan.options.renew)
    return functools.partial(enrol, authority=authority, serials=serials, name=name, renew=renew)


def recording(plan: VerbPlan, verb: Verb) -> Verb:
    """Return the verb, after which the certificate counts that a drive has, if nothing was known of it."""
    folder = authority_folder(plan.paths, plan.inventory.name)
    if plan.dry_run or not has_authority(folder):
        return verb
    authority, serials = open_authority(folder, plan.inventory.name), Serials(folder)

    def record(site: DriveSite) -> VerbOutcome:
        outcome = verb(site)
        if serials.find(site.drive.name) is None and (found := _certificate(site, authority)) is not None:
            serials.adopt(site.drive.name, found.serial_number)
        return outcome

    return record


def revoking(plan: VerbPlan, verb: Verb) -> Verb:
    """Return the verb, after which no certificate of the drive counts any more."""
    folder = authority_folder(plan.paths, plan.inventory.name)
    if plan.dry_run or not has_authority(folder):
        return verb
    serials = Serials(folder)

    def revoke(site: DriveSite) -> VerbOutcome:
        outcome = verb(site)
        serials.revoke(site.drive.name)
        return outcome

    return revoke


def enrol(
    site: DriveSite,
    authority: Authority,
    serials: Serials,
    name: str,
    renew: bool,
    now: datetime.datetime | None = None,
) -> VerbOutcome:
    """Give one drive a certificate, unless it has one that counts and is good for long enough.

    Args:
        site: the drive.
        authority: of the deployment.
        serials: which certificates count.
        name: of the deployment.
        renew: replace even a good one.
        now: this server's date; the drive's own does not count.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    if not (control := Control(site.shell, site.layout)).status(site.deadline).version:
        raise DriveUnfit(f"drive {site.drive.name}: nothing is installed; run csd-emu deploy install")
    known, found = serials.find(site.drive.name), _certificate(site, authority)
    if found is not None and known not in (None, f"{found.serial_number:x}"):
        found = None  # revoked, or a renewal was cut before it was recorded
    ends = None if found is None else found.not_valid_after_utc
    if found is not None and ends is not None and ends - now > RENEW_BEFORE and not renew:
        if not site.dry_run:
            serials.adopt(site.drive.name, found.serial_number)
        return _outcome(site, VerbResult.UNCHANGED, "is enrolled", ends)
    verb = "enrol it" if ends is None else "renew its certificate"
    if site.dry_run:
        return _outcome(site, VerbResult.PLANNED, f"would {verb}", (now + ENROLLED_LIFETIME).replace(microsecond=0))
    site.show("enrol", None)
    until = (now + ENROLLED_LIFETIME).replace(microsecond=0)
    credential = authority.issue_device(site.drive.name, until)
    _send(site, site.layout.enrolment.name, _pack(site.drive.name, name, authority, credential, now))
    control.do("put-enrolment", site.deadline)
    serials.record(site.drive.name, serial_of(credential))
    return _outcome(site, VerbResult.DONE, "enrolled" if ends is None else "renewed", until)


def _certificate(site: DriveSite, authority: Authority) -> x509.Certificate | None:
    """Return the drive's certificate; None if it has none of this authority under its name."""
    # Out of the archive itself, for that is what the agent serves; its key stays on the drive.
    identity = shlex.quote(str(site.layout.enrolment))
    look = f"[ -f {identity} ] && tr -d '\\000' <{identity} | {_FIND_CERTIFICATE}"
    found = site.shell.run(look, site.deadline, root=True)
    try:
        parsed = x509.load_pem_x509_certificate(found.out.replace("\\n", "\n").encode())
    except ValueError:
        return None
    names = [str(part.value) for part in parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return parsed if names == [site.drive.name] and authority.has_issued(parsed) else None


def _send(site: DriveSite, name: str, content: bytes) -> None:
    place = shlex.quote(str(site.layout.enrolment.parent / f"{name}.new"))
    site.shell.check(f"umask 077 && cat >{place}", site.deadline, content, root=True)


def _pack(drive: str, name: str, authority: Authority, credential: Credential, now: datetime.datetime) -> bytes:
    """Return the identity archive; it names no host, so the agent waits until an array lends it a ticket."""
    identity = Identity(
        array=name,
        device=drive,
        incarnation=0,
        host_address="",
        clock="wall",
        unix_seconds=now.timestamp(),
        entropy=secrets.token_bytes(_ENTROPY_BYTES),
        ca_pem=authority.ca_pem,
        certificate_pem=credential.certificate_pem,
        key_pem=credential.key_pem,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "identity.tar"
        write_identity(path, identity)
        return path.read_bytes()


def _outcome(site: DriveSite, result: VerbResult, what: str, ends: datetime.datetime) -> VerbOutcome:
    expires = f"{ends:%Y-%m-%d}"
    return VerbOutcome(site.drive.name, result, f"{what}; ends {expires}", {"expires": expires})


def prepare_revoke(plan: VerbPlan) -> Verb:
    """Return the verb ``revoke``: no certificate of a drive counts until it is enrolled again; none is spoken with.

    Raises:
        ConfigurationError: no drive is named; this verb does not mean all where nothing is said.
    """
    if not plan.named:
        raise ConfigurationError(
            "deploy revoke: name the drives, as in csd-emu deploy revoke INVENTORY.YAML csd-00, or their --groups"
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
    try:
        return DriveEntry(name=name, host=name, folder="/", profile=DEFAULT_PROFILE)
    except ValueError as error:
        raise ConfigurationError(f"deploy revoke: {name!r} is no name of a drive") from error
