"""Authority that enrols real drives, in a folder of its own, and the certificates that are let in."""

from __future__ import annotations

import contextlib
import datetime
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography import x509

from csd_emu.config.array_file import REMOTE, ArrayConfig
from csd_emu.util.file_locks import locked
from csd_emu.util.paths import Paths
from firmware_agent.common.atomic_files import make_folder, replace_file, shared_mode
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit, ProtocolError
from host.core.owned_files import writing
from host.fleet.certificates import Authority, Credential, lent_to, lent_uri

FILE = "serials.json"
# Far more than a deployment has drives; a file that is longer is not ours.
MAX_DRIVES, _MAX_BYTES = 20_000, 4 << 20
REVOKED = ""
_Serial = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{0,40}$")]


class _Records(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: drive -> serial of its newest certificate, hexadecimal; empty where none counts."""

    drives: dict[str, _Serial] = {}


class Serials:
    """The records of one deployment; safe to be used by several processes."""

    def __init__(self, folder: Path) -> None:
        """Use the authority's `folder`; a record makes the file."""
        self._folder, self._path = folder, folder / FILE
        # What `find` read last, and what the file was then: it is replaced whole.
        self._read_last: tuple[tuple[int, ...], dict[str, str]] = (), {}

    def find(self, drive: str) -> str | None:
        """Return the serial that counts, `REVOKED` if none does, None if nothing is known of the drive.

        Takes no lock, and reads the file when it has changed.

        Raises:
            ConfigurationError: the file is damaged.
        """
        if not (seen := self._identify()) or seen != self._read_last[0]:
            self._read_last = seen, self._read()
        return self._read_last[1].get(drive)

    def record(self, drive: str, serial: int) -> None:
        """Let this certificate count, and no other.

        Raises:
            EnvironmentUnfit: it cannot be written.
        """
        self._change(drive, f"{serial:x}")

    def revoke(self, drive: str) -> bool:
        """Let no certificate of this drive count until it is enrolled again; return whether one did, or might have.

        Raises:
            EnvironmentUnfit: it cannot be written.
        """
        return self._change(drive, REVOKED) != REVOKED

    def adopt(self, drive: str, serial: int) -> bool:
        """Let this certificate count if nothing is known of the drive; return whether that was so.

        Raises:
            EnvironmentUnfit: it cannot be written.
        """
        return self._change(drive, f"{serial:x}", only_new=True) is None

    def _change(self, drive: str, serial: str, only_new: bool = False) -> str | None:
        """Return what was there."""
        with writing(self._path, "free some space"), authority_held(self._folder):
            drives = self._read()
            if (before := drives.get(drive)) == serial or (only_new and before is not None):
                return before
            if before is None and len(drives) >= MAX_DRIVES:
                raise EnvironmentUnfit(f"{self._path}: has {MAX_DRIVES} drives already; remove those long gone")
            content = msgspec.json.encode(_Records(drives | {drive: serial}), order="sorted")
            replace_file(self._path, msgspec.json.format(content) + b"\n")
            return before

    def _identify(self) -> tuple[int, ...]:
        """Return what tells this content of the file from any other, nothing where that cannot be told."""
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _read(self) -> dict[str, str]:
        try:
            with open(self._path, "rb") as file:
                content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigurationError(f"{self._path}: cannot be read ({error.strerror}); correct its mode") from error
        try:
            if len(content) > _MAX_BYTES:
                raise ValueError(f"it is longer than {_MAX_BYTES} bytes")
            return dict(msgspec.json.decode(content, type=_Records).drives)
        except ValueError as error:  # msgspec's errors are of this kind
            raise ConfigurationError(
                f"{self._path}: these records are damaged ({error}); restore them, or remove the file and run csd-emu "
                "deploy enrol --renew: until then any certificate of a drive that comes first would count"
            ) from error


@contextlib.contextmanager
def authority_held(folder: Path) -> Iterator[None]:
    """Hold the authority's folder, which is made if it is not there, against other processes.

    Raises:
        OSError: it cannot be used.
    """
    make_folder(folder.parent, shared_mode())
    make_folder(folder, 0o700)
    with locked(folder):
        yield


_KEY, _CERTIFICATE = "ca.key", "ca.pem"


def authority_folder(paths: Paths, inventory: str) -> Path:
    """Return the folder that the server keeps for the deployment of an inventory of this name."""
    return paths.state / "deployments" / inventory


def has_authority(folder: Path) -> bool:
    """Return whether the deployment whose folder this is has its authority already."""
    return (folder / _KEY).exists()


def open_authority(folder: Path, name: str) -> Authority:
    """Return the authority of the deployment `name`, made and kept in `folder` if it is new.

    Raises:
        ConfigurationError: others can read its key, or it is damaged.
        EnvironmentUnfit: the folder cannot be written.
    """
    try:
        with authority_held(folder):
            if not has_authority(folder):
                made = Authority(name)
                replace_file(folder / _CERTIFICATE, made.ca_pem.encode())
                replace_file(folder / _KEY, made.private_pem.encode(), 0o600)
            return _load(folder, name)
    except OSError as error:
        raise EnvironmentUnfit(f"{folder}: cannot be used ({error}); free space, or set CSD_EMU_HOME") from error


def _load(folder: Path, name: str) -> Authority:
    path = folder / _KEY
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigurationError(f"{path}: others can read this private key; set its mode to 600, and enrol --renew")
    try:
        return Authority(
            name, Credential((folder / _CERTIFICATE).read_text(encoding="utf-8"), path.read_text(encoding="utf-8"))
        )
    except ValueError as error:
        raise ConfigurationError(
            f"{folder}: this authority is damaged ({error}); restore it, or remove the folder and enrol all drives"
        ) from error


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

    name = load_inventory(Path(config.inventory)).name
    return name, authority_folder(Paths.default(), name)
