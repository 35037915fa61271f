"""Enrolment: one authority per deployment, certificates that are renewed in time, keys that nobody else reads."""

from __future__ import annotations

import datetime
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from firmware_agent.errors import ConfigurationError, DriveUnfit, DriveUnreachable
from firmware_agent.identity import read_identity
from host.certificates import Authority
from host.deploy import service
from host.deploy.enrol import RENEW_BEFORE, VALID, enrol, open_authority
from host.deploy.work import Outcome, Result
from tests.local_drive import LocalDrive

NOW = datetime.datetime(2031, 5, 4, tzinfo=datetime.UTC)


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[LocalDrive]:
    drive = LocalDrive(tmp_path)
    drive.install(drive.bundle("one"))
    yield drive
    service.uninstall(drive.site())


def do(drive: LocalDrive, authority: Authority, renew: bool = False, now: datetime.datetime = NOW) -> Outcome:
    return enrol(drive.site(), authority, "lab", renew, now)


def test_a_drive_gets_a_certificate_that_only_it_can_read(drive: LocalDrive, tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "lab", "lab")
    assert do(drive, authority).result is Result.DONE
    path = drive.root / "enrolment/identity.tar"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    identity = read_identity(path)
    assert (identity.array, identity.device, identity.host_address, identity.clock) == ("lab", "csd-01", "", "wall")
    certificate = x509.load_pem_x509_certificate(identity.certificate_pem.encode())
    assert authority.has_issued(certificate)
    assert certificate.not_valid_after_utc == NOW + VALID
    assert certificate.not_valid_before_utc <= datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def test_it_is_renewed_shortly_before_its_end_or_when_asked_for(drive: LocalDrive, tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "lab", "lab")
    do(drive, authority)
    path = drive.root / "enrolment/identity.tar"
    first = path.read_bytes()
    late = NOW + VALID - RENEW_BEFORE
    assert do(drive, authority, now=late - datetime.timedelta(days=1)).result is Result.UNCHANGED
    assert path.read_bytes() == first
    assert do(drive, authority, now=late + datetime.timedelta(days=1)).what.startswith("renewed")
    second = path.read_bytes()
    assert second != first
    assert do(drive, authority, renew=True).result is Result.DONE
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
    assert do(drive, authority).result is Result.UNCHANGED


def test_a_dry_run_says_when_the_new_certificate_would_end(drive: LocalDrive, tmp_path: Path) -> None:
    outcome = enrol(drive.site(dry_run=True), open_authority(tmp_path / "lab", "lab"), "lab", False, NOW)
    assert (outcome.result, outcome.facts["expires"]) == (Result.PLANNED, f"{NOW + VALID:%Y-%m-%d}")
    assert not (drive.root / "enrolment/identity.tar").exists()


def test_a_renewal_that_is_cut_is_done_again(drive: LocalDrive, tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "lab", "lab")
    do(drive, authority)
    late = NOW + VALID - datetime.timedelta(days=1)
    for commands in range(1, 20):
        left = iter(range(commands - 1, -1, -1))

        def cut(_: str, left: Iterator[int] = left) -> None:
            if next(left, 1) == 0:
                raise DriveUnreachable("cut")

        try:
            enrol(drive.site(cut), authority, "lab", False, late)
        except DriveUnreachable:
            served = read_identity(drive.root / "enrolment/identity.tar")
            certificate = x509.load_pem_x509_certificate(served.certificate_pem.encode())
            assert certificate.not_valid_after_utc == NOW + VALID
            continue
        assert commands > 2, "the line was never cut"
        break
    served = read_identity(drive.root / "enrolment/identity.tar")
    assert x509.load_pem_x509_certificate(served.certificate_pem.encode()).not_valid_after_utc == late + VALID
    assert do(drive, authority, now=late).result is Result.UNCHANGED


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
