"""Enrolment: one authority per deployment, certificates that are renewed in time, keys that nobody else reads."""

from __future__ import annotations

import datetime
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from csd_emu.engines.remote.inventory import Inventory
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError, DriveUnfit, DriveUnreachable
from firmware_agent.common.identity import read_identity
from host.core.console import StageProgress
from host.deploy.run_verb import DeployRequest, deploy
from host.deploy.verb_protocol import DriveSite, VerbOptions, VerbOutcome, VerbPlan, VerbResult
from host.deploy.verbs import service
from host.deploy.verbs.enrol import enrol, recording, revoking
from host.fleet.certificates import Authority
from host.fleet.enrolment_authority import (
    ENROLLED_LIFETIME,
    RENEW_BEFORE,
    REVOKED,
    Serials,
    authority_folder,
    open_authority,
)
from tests.support.local_drive import LocalDrive

NOW = datetime.datetime(2031, 5, 4, tzinfo=datetime.UTC)


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[LocalDrive]:
    drive = LocalDrive(tmp_path)
    drive.install(drive.bundle("one"))
    yield drive
    service.uninstall(drive.site())


def serials_of(drive: LocalDrive) -> Serials:
    return Serials(drive.folder / "records")


def do(drive: LocalDrive, authority: Authority, renew: bool = False, now: datetime.datetime = NOW) -> VerbOutcome:
    return enrol(drive.site(), authority, serials_of(drive), "lab", renew, now)


def served(drive: LocalDrive) -> str:
    """Serial of the certificate that the drive has."""
    identity = read_identity(drive.root / "enrolment/identity.tar")
    return f"{x509.load_pem_x509_certificate(identity.certificate_pem.encode()).serial_number:x}"


def test_a_drive_gets_a_certificate_that_only_it_can_read(drive: LocalDrive, tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "lab", "lab")
    assert do(drive, authority).result is VerbResult.DONE
    path = drive.root / "enrolment/identity.tar"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    identity = read_identity(path)
    assert (identity.array, identity.device, identity.host_address, identity.clock) == ("lab", "csd-01", "", "wall")
    certificate = x509.load_pem_x509_certificate(identity.certificate_pem.encode())
    assert authority.has_issued(certificate)
    assert certificate.not_valid_after_utc == NOW + ENROLLED_LIFETIME
    assert certificate.not_valid_before_utc <= datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def test_it_is_renewed_shortly_before_its_end_or_when_asked_for(drive: LocalDrive, tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "lab", "lab")
    do(drive, authority)
    path = drive.root / "enrolment/identity.tar"
    first = path.read_bytes()
    late = NOW + ENROLLED_LIFETIME - RENEW_BEFORE
    assert do(drive, authority, now=late - datetime.timedelta(days=1)).result is VerbResult.UNCHANGED
    assert path.read_bytes() == first
    assert do(drive, authority, now=late + datetime.timedelta(days=1)).what.startswith("renewed")
    second = path.read_bytes()
    assert second != first
    assert do(drive, authority, renew=True).result is VerbResult.DONE
    assert path.read_bytes() != second


@pytest.mark.parametrize("harm", ["another authority", "no identity", "nonsense"])
def test_a_certificate_that_is_not_good_is_replaced(drive: LocalDrive, tmp_path: Path, harm: str) -> None:
    authority = open_authority(tmp_path / "lab", "lab")
    do(drive, Authority("lab") if harm == "another authority" else authority)
    if harm == "no identity":
        (drive.root / "enrolment/identity.tar").unlink()
    elif harm == "nonsense":
        (drive.root / "enrolment/identity.tar").write_text("nonsense")
    assert do(drive, authority).what.startswith("enrolled")
    assert do(drive, authority).result is VerbResult.UNCHANGED


def test_a_dry_run_says_when_the_new_certificate_would_end(drive: LocalDrive, tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "lab", "lab")
    outcome = enrol(drive.site(dry_run=True), authority, serials_of(drive), "lab", False, NOW)
    assert serials_of(drive).find("csd-01") is None
    assert (outcome.result, outcome.facts["expires"]) == (VerbResult.PLANNED, f"{NOW + ENROLLED_LIFETIME:%Y-%m-%d}")
    assert not (drive.root / "enrolment/identity.tar").exists()


def test_a_renewal_that_is_cut_is_done_again(drive: LocalDrive, tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "lab", "lab")
    do(drive, authority)
    first = served(drive)
    late = NOW + ENROLLED_LIFETIME - datetime.timedelta(days=1)
    for commands in range(1, 20):
        left = iter(range(commands - 1, -1, -1))

        def cut(_: str, left: Iterator[int] = left) -> None:
            if next(left, 1) == 0:
                raise DriveUnreachable("cut")

        try:
            enrol(drive.site(cut), authority, serials_of(drive), "lab", False, late)
        except DriveUnreachable:
            assert serials_of(drive).find("csd-01") == first
            read = read_identity(drive.root / "enrolment/identity.tar")
            certificate = x509.load_pem_x509_certificate(read.certificate_pem.encode())
            assert certificate.not_valid_after_utc == NOW + ENROLLED_LIFETIME
            continue
        assert commands > 2, "the line was never cut"
        break
    read = read_identity(drive.root / "enrolment/identity.tar")
    assert x509.load_pem_x509_certificate(read.certificate_pem.encode()).not_valid_after_utc == late + ENROLLED_LIFETIME
    assert do(drive, authority, now=late).result is VerbResult.UNCHANGED


def test_a_drive_without_an_agent_is_not_enrolled(tmp_path: Path) -> None:
    with pytest.raises(DriveUnfit, match="nothing is installed; run csd-emu deploy install"):
        do(LocalDrive(tmp_path), Authority("lab"))


def test_an_authority_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "deployments/lab"
    first = open_authority(folder, "lab")
    assert open_authority(folder, "lab").ca_pem == first.ca_pem
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    issued = x509.load_pem_x509_certificate(
        open_authority(folder, "lab").issue_device("csd-01").certificate_pem.encode()
    )
    assert first.has_issued(issued)


def test_an_authority_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    open_authority(folder, "lab")
    (folder / "ca.key").chmod(0o640)
    with pytest.raises(ConfigurationError, match="others can read this private key; set its mode to 600"):
        open_authority(folder, "lab")
    (folder / "ca.key").chmod(0o600)
    (folder / "ca.key").write_text("nonsense")
    with pytest.raises(ConfigurationError, match="this authority is damaged"):
        open_authority(folder, "lab")


def test_the_newest_certificate_is_what_counts(drive: LocalDrive, tmp_path: Path) -> None:
    authority, serials = open_authority(tmp_path / "lab", "lab"), serials_of(drive)
    do(drive, authority)
    first = served(drive)
    assert serials.find("csd-01") == first
    do(drive, authority, renew=True)
    assert serials.find("csd-01") == served(drive) != first


def test_a_drive_that_was_revoked_gets_a_new_certificate_and_a_cut_one_too(drive: LocalDrive, tmp_path: Path) -> None:
    authority, serials = open_authority(tmp_path / "lab", "lab"), serials_of(drive)
    do(drive, authority)
    for harm in (lambda: serials.revoke("csd-01"), lambda: serials.record("csd-01", 5)):
        before = served(drive)
        harm()
        assert do(drive, authority).result is VerbResult.DONE
        assert serials.find("csd-01") == served(drive) != before


def test_a_drive_of_before_is_adopted_when_it_is_found_enrolled(drive: LocalDrive, tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "lab", "lab")
    do(drive, authority)
    (drive.folder / "records/serials.json").unlink()
    assert do(drive, authority).result is VerbResult.UNCHANGED
    assert serials_of(drive).find("csd-01") == served(drive)


def plan_of(drive: LocalDrive, paths: Paths, dry_run: bool = False) -> VerbPlan:
    inventory = Inventory.model_validate({"name": "lab", "drives": {"csd-01": {}, "csd-02": {}}})
    return VerbPlan(inventory, VerbOptions(), paths, dry_run)


def test_an_upgrade_adopts_and_an_uninstall_revokes(drive: LocalDrive, tmp_path: Path) -> None:
    paths = Paths(tmp_path / "cache", tmp_path / "state", tmp_path / "run")
    folder = authority_folder(paths, "lab")
    authority, serials = open_authority(folder, "lab"), Serials(folder)
    do(drive, authority)

    def nothing(site: DriveSite) -> VerbOutcome:
        return VerbOutcome(site.drive.name, VerbResult.UNCHANGED, "")

    recording(plan_of(drive, paths, dry_run=True), nothing)(drive.site())
    assert serials.find("csd-01") is None
    recording(plan_of(drive, paths), nothing)(drive.site())
    assert serials.find("csd-01") == served(drive)
    revoking(plan_of(drive, paths, dry_run=True), nothing)(drive.site())
    assert serials.find("csd-01") == served(drive)
    revoking(plan_of(drive, paths), nothing)(drive.site())
    assert serials.find("csd-01") == REVOKED


class SilentBoard:
    def begin(self, drives: int) -> None: ...
    def show(self, drive: str, what: str, share: float | None) -> None: ...
    def finish(self, outcome: VerbOutcome) -> None: ...


def test_revoking_speaks_with_no_drive_and_names_are_needed(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "cache", tmp_path / "state", tmp_path / "run")
    inventory = tmp_path / "lab.yaml"
    inventory.write_text("name: lab\ndrives: {csd-01: {host: nowhere.invalid}, csd-02: {}}\n")
    serials = Serials(authority_folder(paths, "lab"))
    serials.record("csd-01", 7)

    def revoke(*drives: str, dry_run: bool = False) -> list[tuple[str, str]]:
        request = DeployRequest(inventory, "revoke", list(drives), dry_run=dry_run)
        return [
            (one.drive, one.result) for one in deploy(request, paths, StageProgress(quiet=True), SilentBoard()).drives
        ]

    with pytest.raises(ConfigurationError, match="name the drives"):
        revoke()
    assert revoke("csd-01", dry_run=True) == [("csd-01", "planned")]
    assert serials.find("csd-01") == "7"
    assert revoke("csd-01", "sold-09") == [("csd-01", "done"), ("sold-09", "done")]
    assert (serials.find("csd-01"), serials.find("csd-02"), serials.find("sold-09")) == (REVOKED, None, REVOKED)
    assert revoke("csd-01") == [("csd-01", "unchanged")]
    with pytest.raises(ConfigurationError, match="'No Drive' is no name of a drive"):
        revoke("No Drive")
