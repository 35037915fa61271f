"""What OpenSSH says of a host, so that Include, Match and all else mean what they mean.

Settings are those of its own `ssh -G`; a server's host key is checked against those that
`ssh-keygen -F` finds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko

from csd_emu.engines.remote.inventory import HOP, DriveEntry
from firmware_agent.common.atomic_files import make_folder
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit, HostKeyRefused

SSH_SECONDS = 30.0
DEFAULT_CONNECT_SECONDS, DEFAULT_KEEPALIVE_SECONDS = 20.0, 15
MAX_HOPS = 8
# OpenSSH accepts an unknown key and writes it down with these; a changed one csd-emu refuses with any.
_ACCEPTING = ("accept-new", "no", "off", "false")


@dataclass(frozen=True)
class Route:
    """One SSH server, and how to be let in.

    Attributes:
        host: as the inventory or a jump names it.
        address, port, user: where to connect, and as whom.
        identities: private key files, in the order in which they are tried.
        identities_only: whether keys of the agent that are in none of those files are left out.
        agent: socket of the SSH agent; "" for the environment's, None for no agent.
        known_hosts: files of host keys; new ones are written to the first.
        known_as: the name under which they know the server, `HostKeyAlias` or address and port.
        revoked: files of host keys that are never trusted.
        accept_new: whether an unknown host key is accepted and written down.
        hops: SSH servers on the way, the nearest to this machine first.
        proxy_command: whose standard input and output are the connection, "" if none.
        connect_seconds: how long a connection may take.
        keepalive_seconds: between signs of life.
    """

    host: str
    address: str
    port: int
    user: str
    identities: tuple[Path, ...]
    identities_only: bool
    agent: str | None
    known_hosts: tuple[Path, ...]
    known_as: str
    revoked: tuple[Path, ...]
    accept_new: bool
    hops: tuple[Route, ...] = field(default=())
    proxy_command: str = ""
    connect_seconds: float = DEFAULT_CONNECT_SECONDS
    keepalive_seconds: int = DEFAULT_KEEPALIVE_SECONDS

    @property
    def where(self) -> str:
        """``user@address:port``, for messages."""
        return f"{self.user}@{self.address}:{self.port}"


def find_route(drive: DriveEntry) -> Route:
    """Return how to reach a drive: what the inventory says, and OpenSSH's configuration where it says nothing.

    Raises:
        ConfigurationError: OpenSSH's configuration is wrong, or a jump host cannot be read.
        EnvironmentUnfit: this machine has no OpenSSH client.
    """
    only = None if drive.key is None else "IdentitiesOnly=yes"
    jump = None if drive.jump is None else f"ProxyJump={drive.jump.replace(' ', '')}"
    given = ("-l", drive.user), ("-p", drive.port), ("-i", drive.key), ("-o", only), ("-o", jump)
    return _ask(drive, drive.host, _options(*given), 0)


def _options(*given: tuple[str, str | int | None]) -> list[str]:
    """Return the words of those options of `ssh` that have a value."""
    return [word for option, value in given if value for word in (option, str(value))]


def _hop(drive: DriveEntry, text: str, depth: int) -> Route:
    """Return the route to a jump host; its own configuration tells it, and the inventory's key is offered too."""
    if (found := HOP.match(text.strip())) is None:
        raise ConfigurationError(f"drive {drive.name}: jump: {text!r} is no jump host; write [user@]host[:port]")
    options = _options(("-i", drive.key), ("-l", found["user"]), ("-p", found["port"]))
    return _ask(drive, found["six"] or found["host"], options, depth)


def _ask(drive: DriveEntry, host: str, options: list[str], depth: int) -> Route:
    if depth > MAX_HOPS:
        raise ConfigurationError(
            f"drive {drive.name}: more than {MAX_HOPS} jump hosts one behind the other; ProxyJump may go in a circle"
        )
    if drive.known_hosts is not None:
        options = [*options, "-o", f'UserKnownHostsFile="{drive.known_hosts}"']
    if drive.ssh_config is not None:
        options = ["-F", drive.ssh_config, *options]
    return _read(drive, host, _run_ssh(drive, host, options), depth)


def _run_ssh(drive: DriveEntry, host: str, options: list[str]) -> dict[str, list[str]]:
    command = ["ssh", "-G", *options, "--", host]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SSH_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise EnvironmentUnfit("there is no OpenSSH client (ssh) on this machine; install openssh-client") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(
            f"drive {drive.name}: {shlex.join(command)} did not end; look at Match exec in OpenSSH's configuration"
        ) from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[0]
        raise ConfigurationError(f"drive {drive.name}: OpenSSH refuses its configuration for {host}: {why}")
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value)
    return found


def _read(drive: DriveEntry, host: str, found: dict[str, list[str]], depth: int) -> Route:
    def one(key: str, default: str = "") -> str:
        value = found.get(key, [default])[0]
        return default if value == "none" else value

    address, port, user = one("hostname", host), int(one("port", "22")), one("user")
    alias = one("hostkeyalias")
    tokens = {"h": address, "p": str(port), "r": user, "n": host, "d": str(Path.home()), "k": alias or host, "%": "%"}
    files = [part for key in ("userknownhostsfile", "globalknownhostsfile") for part in one(key).split()]
    if drive.known_hosts is not None:  # which may have blanks in its path
        files = [drive.known_hosts, *one("globalknownhostsfile").split()]
    agent = found.get("identityagent", [""])[0]
    hops = [_hop(drive, jump, depth + 1) for jump in one("proxyjump").split(",") if jump]
    return Route(
        host=host,
        address=address,
        port=port,
        user=user,
        identities=tuple(_path(value, tokens) for value in found.get("identityfile", []) if value != "none"),
        identities_only=one("identitiesonly") == "yes",
        agent=None if agent == "none" else _expand("" if agent == "SSH_AUTH_SOCK" else agent, tokens),
        known_hosts=tuple(_path(value, tokens) for value in files),
        known_as=alias or (address if port == 22 else f"[{address}]:{port}"),
        # One path, blanks and all.
        revoked=tuple(_path(value, tokens) for value in [one("revokedhostkeys")] if value),
        accept_new=one("stricthostkeychecking") in _ACCEPTING,
        hops=(*hops[0].hops, *hops) if hops else (),  # the first jump host may have jump hosts of its own
        proxy_command=_expand(one("proxycommand"), tokens),
        connect_seconds=float(one("connecttimeout", str(DEFAULT_CONNECT_SECONDS))),
        keepalive_seconds=int(one("serveraliveinterval", "0")) or DEFAULT_KEEPALIVE_SECONDS,
    )


def _path(value: str, tokens: dict[str, str]) -> Path:
    return Path(_expand(value, tokens)).expanduser()


def _expand(value: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), value)


_REVOKED, _AUTHORITY = "@revoked", "@cert-authority"
# OpenSSH's binary lists of revoked keys (PROTOCOL.krl) begin so.
_KRL_MAGIC = b"SSHKRL\n\0"
# Threads that accept new keys write to one file.
_WRITING = threading.Lock()


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file that speaks of a server.

    Attributes:
        kind: for example ``ssh-ed25519``.
        blob: the key, as the wire has it.
        revoked: whether the line forbids the key.
        source: file of the line.
    """

    kind: str
    blob: bytes
    revoked: bool
    source: Path


def fingerprint(blob: bytes) -> str:
    """Return a host key's fingerprint as OpenSSH prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _find(path: Path, name: str) -> Iterator[KnownKey]:
    """Yield the keys that a file of known hosts has for a server, hashed lines and patterns included."""
    command = ["ssh-keygen", "-F", name, "-f", str(path)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SSH_SECONDS, check=False)
    except FileNotFoundError as error:
        raise EnvironmentUnfit("there is no ssh-keygen on this machine; install openssh-client") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{path}: ssh-keygen could not search it in {SSH_SECONDS:.0f} s") from error
    if done.returncode and done.stderr.strip():
        why = done.stderr.decode(errors="replace").strip().splitlines()[0]
        raise ConfigurationError(f"{path}: cannot be searched for host keys: {why}")
    yield from _read_found(path, done.stdout.decode(errors="replace").splitlines())


def _read_found(path: Path, lines: list[str]) -> Iterator[KnownKey]:
    """Yield the keys of what ``ssh-keygen -F`` printed: a comment with a line's number before each line."""
    number = "?"
    for line in lines:
        if (comment := re.match(r"# Host .* found: line (\d+)", line)) is not None:
            number = comment[1]
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        # Certificates of hosts are not read: see docs/deploy.md.
        if line.startswith("#") or marker == _AUTHORITY or len(fields) < 3:
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except binascii.Error as error:  # it may be one that revokes: so it is not passed over
            raise ConfigurationError(f"{path}: line {number} is damaged ({error}); correct or remove it") from error
        yield KnownKey(fields[1], blob, marker == _REVOKED, path)


def _is_revoked(path: Path, kind: str, blob: bytes) -> bool:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path}: these RevokedHostKeys cannot be read ({error.strerror}); correct OpenSSH's configuration"
        ) from error
    text = base64.b64encode(blob)
    if not content.startswith(_KRL_MAGIC):
        return any(text in line.split() for line in content.splitlines() if not line.lstrip().startswith(b"#"))
    with tempfile.NamedTemporaryFile(suffix=".pub") as file:
        file.write(kind.encode() + b" " + text + b"\n")
        file.flush()
        command = ["ssh-keygen", "-Q", "-f", str(path), file.name]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SSH_SECONDS, check=False)
    if done.returncode and b"REVOKED" not in done.stdout:
        why = (done.stderr.decode(errors="replace").strip().splitlines() or ["ssh-keygen -Q failed"])[-1]
        raise ConfigurationError(f"{path}: these RevokedHostKeys cannot be read ({why}); make the list anew")
    return done.returncode != 0


class CheckKeys(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko has no types
    """Decides on a server's host key; paramiko has been told of no known keys, so that it asks for each."""

    def __init__(self, drive: str, route: Route, write: bool = True) -> None:
        """Check the server of `route`, for the drive of that name; `write` down a new key that is accepted.

        Raises:
            EnvironmentUnfit: this machine has no OpenSSH client.
            ConfigurationError: a file of host keys cannot be read, or its line is damaged.
        """
        self._drive, self._route, self._may_write = drive, route, write
        self._known = [key for path in route.known_hosts if path.is_file() for key in _find(path, route.known_as)]

    def make_transport(self, sock: Any, **options: Any) -> paramiko.Transport:
        """Return a transport that asks first for a key of a kind that is known, as a server may have several."""
        transport = paramiko.Transport(sock, **options)
        kinds = {key.kind for key in self._known if not key.revoked}
        if "ssh-rsa" in kinds:
            kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
        security = transport.get_security_options()
        security.key_types = sorted(security.key_types, key=lambda kind: kind not in kinds)
        return transport

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        """Return if the key is right.

        Raises:
            HostKeyRefused: it is unknown, revoked, or another than the known one.
            ConfigurationError: `RevokedHostKeys` cannot be read: then OpenSSH trusts no host key either.
        """
        blob = key.asbytes()
        revoking = next((path for path in self._route.revoked if _is_revoked(path, key.get_name(), blob)), None)
        if revoking is not None:
            raise HostKeyRefused(self._say(blob, f"is revoked in {revoking}", "do not use this drive"))
        same = [known for known in self._known if known.blob == blob]
        others = [known for known in self._known if not known.revoked]
        if any(known.revoked for known in same):
            raise HostKeyRefused(self._say(blob, f"is revoked in {same[0].source}", "do not use this drive"))
        if same:
            return
        if others:
            raise HostKeyRefused(self._changed(blob, others[0]))
        if not self._route.accept_new:
            raise HostKeyRefused(self._unknown(key.get_name(), blob))
        if self._may_write:
            self._write(key.get_name(), blob)

    def _changed(self, blob: bytes, known: KnownKey) -> str:
        remove = f"ssh-keygen -R '{self._route.known_as}' -f {known.source}"
        return self._say(
            blob,
            f"is not the known one ({fingerprint(known.blob)} in {known.source}): another drive answers there, it was "
            "set up anew, or somebody is in between",
            f"find out which; only if the new key is the drive's own: {remove}, then add the new one",
        )

    def _unknown(self, kind: str, blob: bytes) -> str:
        route = self._route
        files = route.known_hosts[0] if route.known_hosts else Path("~/.ssh/known_hosts")
        if (
            route.hops
            or route.proxy_command
            or route.known_as not in (route.address, f"[{route.address}]:{route.port}")
        ):
            add = f"log in once with ssh (as {route.host}), or add its key under the name {route.known_as} to {files}"
        else:
            add = f"ssh-keyscan -t {kind} -p {route.port} {route.address} >> {files}"
        return self._say(blob, "is not known", f"compare the fingerprint on the drive itself; if it is the same: {add}")

    def _say(self, blob: bytes, what: str, remedy: str) -> str:
        return f"drive {self._drive}: the host key {fingerprint(blob)} of {self._route.where} {what}; {remedy}"

    def _write(self, kind: str, blob: bytes) -> None:
        if self._route.known_hosts:
            path = self._route.known_hosts[0]
            line = f"{self._route.known_as} {kind} {base64.b64encode(blob).decode()}\n"
            try:
                with _WRITING:
                    make_folder(path.parent, 0o700)
                    with path.open("a", encoding="utf-8") as file:
                        file.write(line)
            except OSError as error:
                raise HostKeyRefused(
                    self._say(blob, f"is new and cannot be written to {path} ({error.strerror})", "make it writable")
                ) from error
