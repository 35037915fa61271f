"""The key of the servers' store: one file, on the store's machine and on every server, that lets its holder in.

It holds a private key and its self-signed certificate, PEM. Both ends of a connection show that certificate and accept
no other (TLS 1.3), so whoever has the file is one of the servers, and nobody else gets a byte into the store.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
import tempfile
from pathlib import Path

from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit

_MODE = 0o600


def make_key(path: Path) -> None:
    """Make the key file unless it is there; of two that do so at once one wins.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    from host.fleet.certificates import Authority  # a worker only reads

    if path.exists():
        return
    made = Authority("servers")
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:  # mode 600
            file.write(made.private_pem + made.ca_pem)
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(file.name, path)
    except OSError as error:
        raise EnvironmentUnfit(
            f"{path}: the store's key cannot be written ({error.strerror}); name another place with store.key"
        ) from error


def server_context(path: Path) -> ssl.SSLContext:
    """Return TLS of the store's end.

    Raises:
        ConfigurationError: see `client_context`.
    """
    return _context(path, ssl.PROTOCOL_TLS_SERVER)


def client_context(path: Path) -> ssl.SSLContext:
    """Return TLS of a server's end.

    Raises:
        ConfigurationError: the key is not there, is damaged, or others than its owner can read it.
    """
    return _context(path, ssl.PROTOCOL_TLS_CLIENT)


def _context(path: Path, protocol: int) -> ssl.SSLContext:
    _check(path)
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is known itself, whatever address it is met at
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(path)
        context.load_verify_locations(path)
    except OSError as error:  # ssl's own errors are of this kind
        raise ConfigurationError(
            f"{path}: this key of the store is damaged ({error}); copy it from the store's machine again"
        ) from error
    return context


def _check(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigurationError(
            f"{path}: the store's key cannot be read ({error.strerror}); csd-emu store makes it on its machine: "
            "copy it from there, mode 600"
        ) from error
    if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) & ~_MODE or found.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            f"{path}: others can read or change the store's key; it must be a file of yours, mode 600. If they had it, "
            "remove it, start csd-emu store, and copy the new one"
        )
