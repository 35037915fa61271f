"""Keys for an SSH login, in OpenSSH's order: the SSH agent's, then those in files. There is never a prompt."""

from __future__ import annotations

import base64
import binascii
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.auth_strategy import AuthStrategy, InMemoryPrivateKey, OnDiskPrivateKey

from csd_emu.engines.remote.openssh import Route


class OpenSshKeys(AuthStrategy):  # type: ignore[misc]  # paramiko has no types
    """The keys of a route. A password is never asked for nor sent.

    Attributes:
        notes: why a key could not be used: what the user can do if none fits.
    """

    def __init__(self, route: Route) -> None:
        """Offer the keys of `route`."""
        super().__init__(ssh_config=None)
        self._route = route
        self._agent: AgentKeys | None = None
        self.notes: list[str] = []

    def get_sources(self) -> Iterator[Any]:
        """Yield what to try: keys of the agent that the configuration names, its others, then files."""
        user = self._route.user
        self._agent = AgentKeys(self._route.agent)
        held = self._agent.keys()
        public = {path: blob for path in self._route.identities if (blob := _public_blob(path)) is not None}
        named = set(public.values())
        yield from (InMemoryPrivateKey(user, key) for key in held if key.asbytes() in named)
        if not self._route.identities_only:
            yield from (InMemoryPrivateKey(user, key) for key in held if key.asbytes() not in named)
        blobs = {key.asbytes() for key in held}
        for path in self._route.identities:
            if public.get(path) not in blobs and (key := self._read(path)) is not None:
                yield OnDiskPrivateKey(user, "ssh-config", path, key)

    def close(self) -> None:
        """End the connection to the agent."""
        if self._agent is not None:
            self._agent.close()

    def _read(self, path: Path) -> Any:
        """Return a private key, or None and a note."""
        try:
            return paramiko.PKey.from_path(path)
        except FileNotFoundError:
            return None
        except (TypeError, paramiko.PasswordRequiredException):  # the first is cryptography's own
            self.notes.append(f"{path} has a passphrase and the agent does not hold it: ssh-add {path}")
        except OSError as error:
            self.notes.append(f"{path} cannot be read ({error.strerror})")
        except (ValueError, UnsupportedAlgorithm, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
            self.notes.append(f"{path} is no key that can be used ({error})")
        return None


class AgentKeys:
    """The keys of one SSH agent; none if there is no agent, or it does not answer."""

    def __init__(self, address: str | None) -> None:
        """Speak with the agent at the socket `address`; "" is the environment's, None none."""
        self._connection: socket.socket | None = None
        self._agent: Any = None
        path = os.environ.get("SSH_AUTH_SOCK", "") if address == "" else address
        if path:
            self._open(str(Path(path).expanduser()))

    def keys(self) -> tuple[Any, ...]:
        """Return the keys that the agent holds."""
        return () if self._agent is None else self._agent.get_keys()

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()

    def _open(self, path: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10.0)
        try:
            connection.connect(path)
            self._agent = _AgentOn(connection)
        except (OSError, paramiko.SSHException):
            connection.close()
        else:
            self._connection = connection


class _AgentOn(paramiko.agent.AgentSSH):  # type: ignore[misc]
    """paramiko's agent knows the environment's socket only."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connect(connection)


def _public_blob(path: Path) -> bytes | None:
    """Return the public half of a private key from the file beside it, without needing a passphrase."""
    try:
        return base64.b64decode(Path(f"{path}.pub").read_text(encoding="utf-8").split()[1])
    except (OSError, UnicodeDecodeError, IndexError, binascii.Error):
        return None
