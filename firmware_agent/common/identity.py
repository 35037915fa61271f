"""Identity of a device: what the host hands it on its second, small namespace."""

from __future__ import annotations

from pathlib import Path

import msgspec

from firmware_agent.common.archive import read_member, write_archive
from firmware_agent.common.errors import ShardError

IDENTITY = "identity.json"


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device's identity, made anew at every start.

    Attributes:
        array: name of the array.
        device: name of the device, the common name of its certificate.
        incarnation: grows with every start of the device within one `up` (so far there is one); the host refuses an
            older one. A twin of an earlier `up` fails already for its certificate.
        host_address: ``name:port`` that the agent dials.
        clock: what the device's seconds are: ``counted``, ``modelled`` or ``wall``.
        unix_seconds: the host's date, for a device whose own clock stands still between template and clone.
        entropy: fresh random bytes; the device reseeds from them before any key, TLS object or random draw.
        ca_pem: certificate of the array's authority, the only one the agent trusts.
        certificate_pem: the device's certificate.
        key_pem: the device's private key.
        data: path in the device of records that it trains on in place; empty: the shard that it was given.
    """

    array: str
    device: str
    incarnation: int
    host_address: str
    clock: str
    unix_seconds: float
    entropy: bytes
    ca_pem: str
    certificate_pem: str
    key_pem: str
    data: str = ""

    @property
    def port(self) -> int:
        """The port in `host_address`."""
        return int(self.host_address.rpartition(":")[2])


def write_identity(path: Path, identity: Identity) -> None:
    """Write the identity archive, mode 0600."""
    write_archive(path, {IDENTITY: msgspec.json.encode(identity)})


def read_identity(path: Path) -> Identity:
    """Read the identity archive at `path`, a file or a block device.

    Raises:
        ShardError: the archive is damaged.
    """
    try:
        return msgspec.json.decode(read_member(path, IDENTITY), type=Identity)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ShardError(f"{path}: {IDENTITY} cannot be read ({error}); start the device again") from error
