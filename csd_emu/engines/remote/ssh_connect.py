"""One SSH connection by `fabric`, with OpenSSH's keys, over the servers on the way; what goes wrong is one line."""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from fabric import Config, Connection
from paramiko.auth_strategy import AuthFailure, AuthStrategy, InMemoryPrivateKey, OnDiskPrivateKey

from csd_emu.engines.remote.openssh import CheckKeys, Route
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import CsdError, DriveUnreachable


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
        held = self._agent.get_keys()
        public = {path: blob for path in self._route.identities if (blob := _public_blob(path)) is not None}
        named = set(public.values())
        yield from (InMemoryPrivateKey(user, key) for key in held if key.asbytes() in named)
        if not self._route.identities_only:
            yield from (InMemoryPrivateKey(user, key) for key in held if key.asbytes() not in named)
        blobs = {key.asbytes() for key in held}
        yield from (
            OnDiskPrivateKey(user, "ssh-config", path, key)
            for path in self._route.identities
            if public.get(path) not in blobs and (key := self._read(path)) is not None
        )

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


class AgentKeys(paramiko.agent.AgentSSH):  # type: ignore[misc]
    """The keys of one SSH agent; none if there is no agent, or it does not answer.

    paramiko's own `Agent` knows the environment's socket only.
    """

    def __init__(self, address: str | None) -> None:
        """Speak with the agent at the socket `address`; "" is the environment's, None none."""
        super().__init__()
        path = os.environ.get("SSH_AUTH_SOCK", "") if address == "" else address
        if path:
            self._open(str(Path(path).expanduser()))

    def close(self) -> None:
        """End the connection."""
        self._close()

    def _open(self, path: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10.0)
        try:
            connection.connect(path)
            self._connect(connection)
        except (OSError, paramiko.SSHException):
            connection.close()


def _public_blob(path: Path) -> bytes | None:
    """Return the public half of a private key from the file beside it, without needing a passphrase."""
    try:
        return base64.b64decode(Path(f"{path}.pub").read_text(encoding="utf-8").split()[1])
    except (OSError, UnicodeDecodeError, IndexError, binascii.Error):
        return None


log = logging.getLogger(__name__)

# paramiko logs from a thread of its own what it also raises; without a handler that goes to the terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
_MIN_SECONDS = 0.1
_CLOSE_SECONDS = 5.0
_KEEPALIVES_MISSED = 4


class Connected:
    """An open connection to a drive, and those to the servers on the way."""

    def __init__(self, drive: str, route: Route, deadline: Deadline, write_keys: bool = True) -> None:
        """Connect over all hops, the nearest first; see `csd_emu.engines.remote.shell.open_shell` for errors."""
        self.route, self._write_keys = route, write_keys
        self._drive = drive
        self._open: list[Any] = []
        self._stack = contextlib.ExitStack()
        try:
            for server in (*route.hops, route):
                self._connect(server, deadline)
        except BaseException:
            self.close()
            raise
        self.transport: Any = self._open[-1].transport

    def close(self) -> None:
        """End all connections, the farthest first."""
        self._stack.close()

    def _connect(self, route: Route, deadline: Deadline) -> None:
        """Open the connection to one server, through the one before it."""
        if deadline.expired:
            raise DriveUnreachable(f"drive {self._drive}: no time is left to connect to {route.where}; raise --timeout")
        limit = max(_MIN_SECONDS, min(deadline.left_seconds, route.connect_seconds))
        check, keys = CheckKeys(self._drive, route, self._write_keys), OpenSshKeys(route)
        options: dict[str, Any] = {
            "banner_timeout": limit,
            "auth_timeout": limit,
            "channel_timeout": limit,
            "transport_factory": check.make_transport,
            "auth_strategy": keys,
        }
        with _explained(self._drive, route, keys, limit):
            if self._open:
                options["sock"] = self._open[-1].transport.open_channel(
                    "direct-tcpip", (route.address, route.port), ("", 0), timeout=limit
                )
            elif route.proxy_command:
                options["sock"] = self._stack.enter_context(_proxied(route.proxy_command))
            connection = Connection(
                route.address,
                user=route.user,
                port=route.port,
                gateway=False,
                # `ssh -G` has read OpenSSH's configuration, and files of fabric's are not read.
                config=Config(ssh_config=paramiko.SSHConfig(), lazy=True),
                connect_timeout=max(1, int(limit)),
                connect_kwargs=options,
            )
            self._stack.callback(_close, connection, keys)
            connection.client.set_missing_host_key_policy(check)
            connection.open()
            _keep_alive(connection.transport, route.keepalive_seconds)
        self._open.append(connection)


def _keep_alive(transport: Any, seconds: int) -> None:
    """Send signs of life; if several stay unanswered, the kernel ends the connection, rather than a quarter hour later.

    Behind a jump host only the way to the jump host is watched so; a drive that falls silent there is the deadlines'.
    """
    transport.set_keepalive(seconds)
    if isinstance(transport.sock, socket.socket) and transport.sock.family != socket.AF_UNIX:
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _KEEPALIVES_MISSED * seconds)


def _close(connection: Any, keys: OpenSshKeys) -> None:
    keys.close()
    # Also where login failed half-way: fabric closes only what it holds to be connected.
    if (transport := connection.client.get_transport()) is not None:
        # The far side shall know at once: paramiko's thread, and any child on its way to exec, still hold the socket.
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            transport.sock.shutdown(socket.SHUT_RDWR)
    connection.client.close()
    if transport is not None:
        transport.join(_CLOSE_SECONDS)


@contextlib.contextmanager
def _proxied(command: str) -> Iterator[socket.socket]:
    """Start a `ProxyCommand`, and yield the socket that is its standard input and output."""
    ours, its = socket.socketpair()
    with ours:
        with its:
            program = ["/bin/sh", "-c", f"exec {command}"]
            process = subprocess.Popen(program, stdin=its.fileno(), stdout=its.fileno(), stderr=subprocess.DEVNULL)
        try:
            yield ours
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _explained(drive: str, route: Route, keys: OpenSshKeys, limit: float) -> Iterator[None]:
    """Turn what paramiko and sockets raise into one line that says what to do."""

    def fail(what: str, remedy: str) -> DriveUnreachable:
        return DriveUnreachable(f"drive {drive}: {route.where} {what}; {remedy}")

    try:
        yield
    except AuthFailure as error:
        tried = [type(entry.result).__name__ for entry in error.result]
        raise fail(*_login_refused(route, keys, len(tried), str(error))) from error
    except paramiko.ChannelException as error:
        raise fail(
            f"cannot be reached from the jump host ({error.text})",
            "check its address and port, and whether the jump host allows TCP forwarding",
        ) from error
    except socket.gaierror as error:
        raise fail(f"is no name that can be resolved ({error.strerror})", "check its spelling") from error
    except TimeoutError as error:
        raise fail(
            f"did not answer within {limit:.0f} s", "check that the drive is on and that no firewall is in between"
        ) from error
    except paramiko.ssh_exception.NoValidConnectionsError as error:
        if any(isinstance(one, ConnectionRefusedError) for one in error.errors.values()):
            raise fail("refuses connections", "check the port, and that an SSH server runs on the drive") from error
        raise fail(*_broken(next(iter(error.errors.values())), route, limit)) from error
    except CsdError:
        raise
    except Exception as error:  # paramiko passes on whatever its parsers raise on what the server sent
        raise fail(*_broken(error, route, limit)) from error


def _login_refused(route: Route, keys: OpenSshKeys, tried: int, why: str) -> tuple[str, str]:
    notes = "; ".join(keys.notes)
    if not tried:
        remedy = notes or "name a key with `key` in the inventory, or load one into the agent: ssh-add"
        return "lets nobody in without a key, and none was found", remedy
    if "too many" in why.lower():
        return f"ended the login after {tried} keys", "name the right one with `key` in the inventory"
    remedy = f"add its public half to ~{route.user}/.ssh/authorized_keys on the drive, or name the right key or user"
    return f"refused {tried} key{'s' * (tried > 1)}", f"{notes}; or {remedy}" if notes else remedy


def _broken(error: Exception, route: Route, limit: float) -> tuple[str, str]:
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, paramiko.SSHException | EOFError | OSError):
        log.info("%s: not expected", route.where, exc_info=error)
        remedy = "check what listens there, and upgrade the SSH server on the drive"
        return f"sent what is no SSH ({type(error).__name__}: {text})", remedy
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be reached ({error.strerror})", "check its address, and the network or tunnel that leads there"
    late = "banner" in text.lower() and isinstance(error.__cause__ or error.__context__, TimeoutError)
    # The other is what paramiko says of a server that did not finish the key exchange in time.
    if late or text == "No existing session":
        return f"did not answer within {limit:.0f} s", "check that the drive is on, and what the tunnel leads to"
    if "banner" in text.lower() or (isinstance(error, EOFError) and route.proxy_command):
        through = f" (through: {route.proxy_command})" if route.proxy_command else ""
        remedy = "check the port, or what the tunnel leads to; a busy jump host may want fewer --jobs"
        return f"did not answer as an SSH server does{through}", remedy
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return f"has no algorithm in common with this machine ({text})", "upgrade the SSH server on the drive"
    return f"broke off the connection ({text})", "look at the drive's own log of its SSH server"
