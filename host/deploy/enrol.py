"""Enrolment: a deployment's own authority on the server, and a certificate of it on each drive, brought over SSH."""

from __future__ import annotations

import datetime
import functools
import os
import secrets
import shlex
import stat
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from csd_emu.paths import Paths
from csd_emu.remote.control import Control
from firmware_agent.errors import ConfigurationError, DriveUnfit, EnvironmentUnfit
from firmware_agent.identity import Identity, write_identity
from host.certificates import Authority, Credential, serial_of
from host.deploy.serials import Serials, locked
from host.deploy.verbs import Plan
from host.deploy.work import Outcome, Result, Site, Verb
from host.files import replace_file

VALID, RENEW_BEFORE = datetime.timedelta(days=730), datetime.timedelta(days=30)
_KEY, _CERTIFICATE = "ca.key", "ca.pem"
_ENTROPY_BYTES = 64
_FIND_CERTIFICATE = r"""sed -n 's/^.*"certificate_pem":"\([^"]*\)".*$/\1/p'"""


def prepare(plan: Plan) -> Verb:
    """Return the verb; makes the deployment's authority if there is none, unless nothing may change."""
    folder = authority_folder(plan.paths, plan.inventory.name)
    name, serials, new = plan.inventory.name, Serials(folder), not (folder / _KEY).exists()
    if plan.dry_run and new:
        return functools.partial(enrol, authority=Authority(name), serials=serials, name=name, renew=True)
    authority, renew = open_authority(folder, name), bool(plan.options.renew)
    return functools.partial(enrol, authority=authority, serials=serials, name=name, renew=renew)


def recording(plan: Plan, verb: Verb) -> Verb:
    """Return the verb, after which the certificate counts that a drive has, if nothing was known of it."""
    folder = authority_folder(plan.paths, plan.inventory.name)
    if plan.dry_run or not (folder / _KEY).exists():
        return verb
    authority, serials = open_authority(folder, plan.inventory.name), Serials(folder)

    def record(site: Site) -> Outcome:
        outcome = verb(site)
        if serials.find(site.drive.name) is None and (found := _certificate(site, authority)) is not None:
            serials.adopt(site.drive.name, found.serial_number)
        return outcome

    return record


def revoking(plan: Plan, verb: Verb) -> Verb:
    """Return the verb, after which no certificate of the drive counts any more."""
    folder = authority_folder(plan.paths, plan.inventory.name)
    if plan.dry_run or not (folder / _KEY).exists():
        return verb
    serials = Serials(folder)

    def revoke(site: Site) -> Outcome:
        outcome = verb(site)
        serials.revoke(site.drive.name)
        return outcome

    return revoke


def authority_folder(paths: Paths, inventory: str) -> Path:
    """Return the folder that the server keeps for the deployment of an inventory of this name."""
    return paths.state / "deployments" / inventory


def open_authority(folder: Path, name: str) -> Authority:
    """Return the authority of the deployment `name`, made and kept in `folder` if it is new.

    Raises:
        ConfigurationError: others can read its key, or it is damaged.
        EnvironmentUnfit: the folder cannot be written.
    """
    try:
        with locked(folder):
            if not (folder / _KEY).exists():
                made = Authority(name)
                replace_file(folder / _CERTIFICATE, made.ca_pem.encode())
                _write_private(folder / _KEY, made.private_pem)
            return _load(folder, name)
    except OSError as error:
        raise EnvironmentUnfit(f"{folder}: cannot be used ({error}); free space, or set CSD_EMU_HOME") from error


def enrol(
    site: Site,
    authority: Authority,
    serials: Serials,
    name: str,
    renew: bool,
    now: datetime.datetime | None = None,
) -> Outcome:
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
    control = Control(site.shell, site.layout)
    if not control.status(site.deadline).version:
        raise DriveUnfit(f"drive {site.drive.name}: nothing is installed; run csd-emu deploy install")
    known, found = serials.find(site.drive.name), _certificate(site, authority)
    if found is not None and known not in (None, f"{found.serial_number:x}"):
        found = None  # revoked, or a renewal was cut before it was recorded
    ends = None if found is None else found.not_valid_after_utc
    if found is not None and ends is not None and ends - now > RENEW_BEFORE and not renew:
        if not site.dry_run:
            serials.adopt(site.drive.name, found.serial_number)
        return _outcome(site, Result.UNCHANGED, "is enrolled", ends)
    verb = "enrol it" if ends is None else "renew its certificate"
    if site.dry_run:
        return _outcome(site, Result.PLANNED, f"would {verb}", (now + VALID).replace(microsecond=0))
    site.show("enrol", None)
    until = (now + VALID).replace(microsecond=0)
    credential = authority.issue_device(site.drive.name, until)
    _send(site, site.layout.enrolment.name, _pack(site.drive.name, name, authority, credential, now))
    control.do("put-enrolment", site.deadline)
    serials.record(site.drive.name, serial_of(credential))
    return _outcome(site, Result.DONE, "enrolled" if ends is None else "renewed", until)


def _certificate(site: Site, authority: Authority) -> x509.Certificate | None:
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
    if names != [site.drive.name] or not authority.has_issued(parsed):
        return None
    return parsed


def _send(site: Site, name: str, content: bytes) -> None:
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


def _outcome(site: Site, result: Result, what: str, ends: datetime.datetime) -> Outcome:
    expires = f"{ends:%Y-%m-%d}"
    return Outcome(site.drive.name, result, f"{what}; ends {expires}", {"expires": expires})


def _load(folder: Path, name: str) -> Authority:
    path = folder / _KEY
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigurationError(f"{path}: others can read this private key; set its mode to 600, and enrol --renew")
    try:
        saved = Credential((folder / _CERTIFICATE).read_text(encoding="utf-8"), path.read_text(encoding="utf-8"))
        return Authority(name, saved)
    except ValueError as error:
        raise ConfigurationError(
            f"{folder}: this authority is damaged ({error}); restore it, or remove the folder and enrol all drives"
        ) from error


def _write_private(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
