"""Certificates that are let in: an emulated drive's of this array and run, a real drive's newest one."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from csd_emu.config.array_file import REMOTE, ArrayConfig
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit, ProtocolError
from host.fleet.certificates import lent_to, lent_uri
from host.fleet.enrolment_authority import REVOKED, Serials

# Of a drive that is enrolled, and how long before its end it is renewed.
ENROLLED_LIFETIME, RENEW_BEFORE = datetime.timedelta(days=730), datetime.timedelta(days=30)
# Of one that is lent to an emulated drive, for one `up`, by the authority of a deployment, which outlives the array.
LENT_LIFETIME = datetime.timedelta(days=90)


@dataclass(frozen=True)
class CertificateCheck:
    """What the fleet of one array asks of certificates that the authority has signed, beyond their name.

    Attributes:
        array, run: of those that were lent to emulated drives at this array's `up`.
        own: drives that have certificates of their own: real ones.
        serials: which of those count; None where there are no real drives.
    """

    array: str
    run: str
    own: frozenset[str]
    serials: Serials | None

    @classmethod
    def of(cls, config: ArrayConfig, run: str, folder: Path | None) -> CertificateCheck:
        """Return that of an array; `folder` is its deployment's, None without an inventory."""
        own = frozenset(device.name for device in config.list_nodes() if device.engine == REMOTE)
        return cls(config.name, run, own, None if folder is None else Serials(folder))

    def check(self, device: str, certificates: Iterable[bytes]) -> int | None:
        """Return None if a certificate counts, its serial if it would once it is adopted. Quick; waits for nobody.

        Args:
            device: its common name.
            certificates: PEM, of the peer; the first counts.

        Raises:
            ProtocolError: it is not let in; the message says why.
        """
        try:
            certificate = x509.load_pem_x509_certificate(next(iter(certificates), b""))
            lent = lent_to(certificate)
        except ValueError as error:
            raise ProtocolError(f"{device}: its certificate cannot be read ({error})") from error
        if device in self.own:
            if lent:
                raise ProtocolError(f"{device}: came with a certificate that was lent to an emulated drive")
            return self._find_own(device, certificate.serial_number)
        if lent != [lent_uri(self.array, self.run)]:
            raise ProtocolError(
                f"{device}: its certificate is of another array, or of a run of this one that has ended; "
                f"csd-emu down {self.array} and up again gives it a new one"
            )
        return None

    def adopt(self, device: str, serial: int) -> str:
        """Let a certificate count if nothing is known of the drive, and return that; nothing if it counts already.

        It waits for other processes and the disk.

        Raises:
            ProtocolError: another one counts, or it cannot be written down.
        """
        try:
            if self.serials is not None and self.serials.adopt(device, serial):
                return f"serial {serial:x}: nothing was known of this drive, its first certificate counts from now on"
        except (ConfigurationError, EnvironmentUnfit) as error:
            raise _unknown(device, error) from error
        self._find_own(device, serial)
        return ""

    def _find_own(self, device: str, serial: int) -> int | None:
        if self.serials is None:
            return None
        try:
            known = self.serials.find(device)
        except (ConfigurationError, EnvironmentUnfit) as error:
            raise _unknown(device, error) from error
        if known is None:
            return serial
        if known == REVOKED:
            raise ProtocolError(f"{device}: its certificate was revoked; if it is yours, csd-emu deploy enrol it again")
        if known != f"{serial:x}":
            raise ProtocolError(
                f"{device}: its certificate is not the newest that it was given; csd-emu deploy enrol it again"
            )
        return None


def _unknown(device: str, error: Exception) -> ProtocolError:
    return ProtocolError(f"{device}: whether its certificate counts is not known: {error}")


def deployment_folder(config: ArrayConfig) -> tuple[str, Path] | None:
    """Return name and authority's folder of the deployment that an array's real drives are of; None without any.

    Raises:
        ConfigurationError: the inventory cannot be read.
    """
    if config.inventory is None:
        return None
    from csd_emu.engines.remote.inventory import load_inventory
    from host.fleet.enrolment_authority import authority_folder

    name = load_inventory(Path(config.inventory)).name
    return name, authority_folder(Paths.default(), name)
