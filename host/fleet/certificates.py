"""Certificate authorities: an array's own, made at every `up`, and that of a deployment, kept on its server."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from firmware_agent.common.atomic_files import make_folder
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.wire import HOST_NAME

# A clone's date is its template's, which may be months old, and a drive without a clock begins in 1970 at every boot.
_NOT_BEFORE = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LENT = "urn:csd-emu:lent:"
_NOT_AFTER = datetime.datetime(2099, 12, 31, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Credential:
    """A certificate and its private key, PEM."""

    certificate_pem: str
    key_pem: str


class Authority:
    """Issues the certificates of one array or deployment.

    An array's key lives in memory only, so nothing can be issued later; a deployment's is saved (see `private_pem`).
    """

    def __init__(self, array: str, saved: Credential | None = None) -> None:
        """Make a new key and self-signed certificate, or take those that were `saved`.

        Raises:
            ValueError: what was saved is damaged.
        """
        self._array, self._name = array, _subject(f"csd-emu {array}", array)
        if saved is not None:
            self._key = _load_key(saved.key_pem)
            self._certificate = x509.load_pem_x509_certificate(saved.certificate_pem.encode())
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def ca_pem(self) -> str:
        """The certificate that both sides trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def private_pem(self) -> str:
        """The private key, without a password: for a file that only its owner can read."""
        return _key_pem(self._key)

    def issue_device(self, device: str, until: datetime.datetime | None = None, lent: str = "") -> Credential:
        """Return a client credential whose common name is the device's name.

        Args:
            device: its name.
            until: it is valid until then, or for ever.
            lent: what it is good for alone, of an emulated drive (see `lent_uri`); empty: a drive's own.
        """
        return self._issue(device, ExtendedKeyUsageOID.CLIENT_AUTH, until, lent)

    def has_issued(self, certificate: x509.Certificate) -> bool:
        """Return whether a certificate is signed by this authority."""
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True

    def issue_host(self) -> Credential:
        """Return the host's server credential."""
        return self._issue(HOST_NAME, ExtendedKeyUsageOID.SERVER_AUTH)

    def _issue(
        self, name: str, usage: x509.ObjectIdentifier, until: datetime.datetime | None = None, uri: str = ""
    ) -> Credential:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(name), *([x509.UniformResourceIdentifier(uri)] if uri else [])]
        certificate = (
            _builder(_subject(name, self._array), self._name, key.public_key(), until or _NOT_AFTER)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Credential(certificate.public_bytes(serialization.Encoding.PEM).decode(), _key_pem(key))


def serial_of(credential: Credential) -> int:
    """Return the serial number of a certificate."""
    return x509.load_pem_x509_certificate(credential.certificate_pem.encode()).serial_number


def lent_uri(array: str, run: str) -> str:
    """Return what a certificate says that was lent to an emulated drive of this run of an array."""
    return f"{_LENT}{array}:{run}"


def lent_to(certificate: x509.Certificate) -> list[str]:
    """Return what a certificate says of whom it was lent to (see `lent_uri`); nothing of a drive's own.

    Raises:
        ValueError: its extensions are damaged.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if uri.startswith(_LENT)]


@dataclass(frozen=True)
class HostKeys:
    """What a host process needs to listen: the authority's certificate and its own credential."""

    ca_pem: str
    credential: Credential

    def save(self, folder: Path) -> None:
        """Write the three PEM files into `folder`; the key is for the owner alone."""
        make_folder(folder, 0o700)
        own = self.credential
        for name, text in {"ca.pem": self.ca_pem, "host.pem": own.certificate_pem, "host.key": own.key_pem}.items():
            path = folder / name
            path.touch(mode=0o600)
            path.write_text(text)

    @classmethod
    def load(cls, folder: Path) -> HostKeys:
        """Read what `save` wrote.

        Raises:
            ConfigurationError: the files are not there.
        """
        try:
            ca, certificate, key = ((folder / name).read_text() for name in ("ca.pem", "host.pem", "host.key"))
        except OSError as error:
            raise ConfigurationError(
                f"{folder}: the array's keys cannot be read ({error}); run csd-emu up again"
            ) from error
        return cls(ca, Credential(certificate, key))


def _subject(common_name: str, array: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, array), x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return encoded.decode()


def _load_key(pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("it is no elliptic curve key")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime.datetime = _NOT_AFTER
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(_NOT_BEFORE).not_valid_after(until)
