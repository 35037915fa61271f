import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.wire import HOST_NAME
from host.fleet.certificates import Authority, Credential, HostKeys


def parsed(credential: Credential) -> x509.Certificate:
    return x509.load_pem_x509_certificate(credential.certificate_pem.encode())


def usages(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_a_device_is_named_by_its_certificate_and_signed_by_the_authority(authority: Authority) -> None:
    certificate = parsed(authority.issue_device("csd-07"))
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert [name.value for name in names] == ["csd-07"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.ca_pem.encode()))
    assert usages(certificate) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_device_cannot_pose_as_the_host_or_as_an_authority(authority: Authority) -> None:
    host, device = parsed(authority.issue_host()), parsed(authority.issue_device("csd-00"))
    assert usages(host) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = host.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [HOST_NAME]
    for certificate in (host, device):
        with pytest.raises(x509.ExtensionNotFound):
            certificate.extensions.get_extension_for_class(x509.BasicConstraints)


def test_each_key_is_its_own_and_belongs_to_its_certificate(authority: Authority) -> None:
    credentials = [authority.issue_device("csd-00"), authority.issue_device("csd-00"), authority.issue_host()]
    assert len({credential.key_pem for credential in credentials}) == 3
    assert len({parsed(credential).serial_number for credential in credentials}) == 3
    for credential in credentials:
        key = load_pem_private_key(credential.key_pem.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.public_key() == parsed(credential).public_key()


def test_a_clone_whose_date_is_years_behind_still_accepts(authority: Authority) -> None:
    for certificate in (parsed(authority.issue_device("csd-00")), parsed(authority.issue_host())):
        assert certificate.not_valid_before_utc < datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
        assert certificate.not_valid_after_utc > datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)


def test_two_arrays_of_one_name_do_not_trust_each_other() -> None:
    one, other = Authority("lab"), Authority("lab")
    with pytest.raises(InvalidSignature):
        parsed(one.issue_device("csd-00")).verify_directly_issued_by(
            x509.load_pem_x509_certificate(other.ca_pem.encode())
        )


def test_keys_come_back_from_their_folder_which_is_for_the_owner_alone(tmp_path: Path, host_keys: HostKeys) -> None:
    folder = tmp_path / "keys"
    host_keys.save(folder)
    host_keys.save(folder)
    assert HostKeys.load(folder) == host_keys
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    (folder / "host.key").unlink()
    with pytest.raises(ConfigurationError, match=r"keys cannot be read.*csd-emu up again"):
        HostKeys.load(folder)
