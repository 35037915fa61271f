"""OpenSSH's settings for a host, from its own `ssh -G`, so that Include, Match and all else mean what they mean."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from csd_emu.engines.remote.inventory import HOP, DriveEntry
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit

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
    options = []
    if drive.user is not None:
        options += ["-l", drive.user]
    if drive.port is not None:
        options += ["-p", str(drive.port)]
    if drive.key is not None:
        options += ["-i", drive.key, "-o", "IdentitiesOnly=yes"]
    if drive.jump is not None:
        options += ["-o", f"ProxyJump={drive.jump.replace(' ', '')}"]
    return _ask(drive, drive.host, options, 0)


def _hop(drive: DriveEntry, text: str, depth: int) -> Route:
    """Return the route to a jump host; its own configuration tells it, and the inventory's key is offered too."""
    found = HOP.match(text.strip())
    if found is None:
        raise ConfigurationError(f"drive {drive.name}: jump: {text!r} is no jump host; write [user@]host[:port]")
    options = ["-i", drive.key] if drive.key is not None else []
    if found["user"]:
        options += ["-l", found["user"]]
    if found["port"]:
        options += ["-p", found["port"]]
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
    jumps = [jump for jump in one("proxyjump").split(",") if jump]
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
        hops=_chain(tuple(_hop(drive, jump, depth + 1) for jump in jumps)),
        proxy_command=_expand(one("proxycommand"), tokens),
        connect_seconds=float(one("connecttimeout", str(DEFAULT_CONNECT_SECONDS))),
        keepalive_seconds=int(one("serveraliveinterval", "0")) or DEFAULT_KEEPALIVE_SECONDS,
    )


def _chain(hops: tuple[Route, ...]) -> tuple[Route, ...]:
    """Return all servers on the way; the first jump host may have jump hosts of its own."""
    return (*hops[0].hops, *hops) if hops else ()


def _path(value: str, tokens: dict[str, str]) -> Path:
    return Path(_expand(value, tokens)).expanduser()


def _expand(value: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), value)
