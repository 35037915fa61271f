"""Stub drives: SSH servers on loopback, many in one process, whose commands run in a real `sh`; some are broken.

What is real: the SSH protocol, host keys, login by key, exec channels, the shell and its files. What is not: the
drives have this machine's processor and disk, and the user that they call root is whoever runs them.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import paramiko
import yaml

from csd_emu.engines.remote.shell import CommandResult

USER = "stub"


class StubFault(Enum):
    """What is wrong with a stub drive."""

    NONE = "nothing"
    REFUSE = "nothing listens on its port"
    HANG = "it accepts connections and says nothing"
    NONSENSE = "something else than an SSH server answers"
    GARBLED = "its list of algorithms is no text"
    WRONG_KEY = "it has another host key than the known one"
    NO_LOGIN = "it refuses every key"
    CUT = "the connection breaks after some bytes, once"
    FULL = "its disk is full"
    NO_SUDO = "its user may not become root"
    NO_SHELL = "every command ends with 127"


AnswerTo = Callable[[str, bytes], CommandResult | None]
"""Is given a command and its standard input; None: the stub drive's shell runs it."""


@dataclass(frozen=True)
class StubDrive:
    """One stub drive.

    Attributes:
        name: in the inventory.
        fault: what is wrong with it.
        cut_after_bytes: received from the client, after which `StubFault.CUT` strikes.
        answer: in place of the shell, for commands that it answers.
    """

    name: str
    fault: StubFault = StubFault.NONE
    cut_after_bytes: int = 2**17
    answer: AnswerTo | None = None


def furnish(home: Path, fault: StubFault) -> None:
    """Make a drive's folder, with commands of its own where the drive differs from this machine."""
    commands = {
        "id": f'case "$1" in -u) echo 1000;; -un) echo {USER};; *) exec /usr/bin/id "$@";; esac',
        "sudo": "while [ $# -gt 0 ]; do case $1 in -n|--) shift;; *) break;; esac; done\n"
        'PATH="$(dirname "$0")/root:$PATH" exec "$@"',
    }
    if fault is StubFault.NO_SUDO:
        commands["sudo"] = 'echo "sudo: a password is required" >&2; exit 1'
    if fault is StubFault.FULL:
        commands["dd"] = 'head -c 65536 >/dev/null; echo "dd: error writing: No space left on device" >&2; exit 1'
    (home / "bin" / "root").mkdir(parents=True)
    _write_command(home / "bin" / "root" / "id", 'case "$1" in -u) echo 0;; *) exec /usr/bin/id "$@";; esac')
    for name, script in commands.items():
        _write_command(home / "bin" / name, script)


def _write_command(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


_CHUNK_BYTES = 2**15


class StubSession(paramiko.ServerInterface):  # type: ignore[misc]  # paramiko has no types
    """What one connection may do: log in with the client's key, and run commands."""

    def __init__(self, server: _Server, transport: Any) -> None:
        self._server, self._transport = server, transport
        self._received = 0
        self._threads: list[threading.Thread] = []

    def get_allowed_auths(self, username: str) -> str:
        """Offer keys only."""
        return "publickey"

    def check_auth_publickey(self, username: str, key: Any) -> int:
        """Let in who has the client's key."""
        right = (
            key.asbytes() == self._server.client_key.asbytes() and self._server.drive.fault is not StubFault.NO_LOGIN
        )
        return paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED  # type: ignore[no-any-return]

    def check_channel_request(self, kind: str, chanid: int) -> int:
        """Allow sessions, and no forwarding."""
        known = kind == "session"
        return paramiko.OPEN_SUCCEEDED if known else paramiko.OPEN_FAILED_UNKNOWN_CHANNEL_TYPE  # type: ignore[no-any-return]

    def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
        """Begin a command, in a thread of its own."""
        thread = threading.Thread(target=self._run, args=(channel, command.decode()), daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

    def join(self) -> None:
        """Wait for the end of all commands."""
        for thread in self._threads:
            thread.join()

    def _run(self, channel: Any, command: str) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            code = self._answer(channel, command)
            channel.send_exit_status(code)
        channel.close()

    def _answer(self, channel: Any, command: str) -> int:
        drive = self._server.drive
        if drive.fault is StubFault.NO_SHELL:
            list(self._input(channel))  # the client sends its end once it knows that the command has begun
            channel.sendall_stderr(b"exec: /bin/sh: not found\n")
            return 127
        if drive.answer is None:
            return self._run_shell(channel, command, self._input(channel))
        stdin = b"".join(self._input(channel))
        answer = drive.answer(command, stdin)
        if answer is None:
            return self._run_shell(channel, command, iter([stdin]))
        channel.sendall(answer.out.encode())
        channel.sendall_stderr(answer.err.encode())
        return answer.code

    def _input(self, channel: Any) -> Iterator[bytes]:
        """Yield what the client sends; the connection may be cut meanwhile."""
        while chunk := channel.recv(_CHUNK_BYTES):
            self._received += len(chunk)
            if self._server.cuts_left and self._received >= self._server.drive.cut_after_bytes:
                self._server.cuts_left -= 1
                self._transport.close()
                return
            yield chunk

    def _run_shell(self, channel: Any, command: str, source: Iterator[bytes]) -> int:
        home = self._server.home
        environment = {"PATH": f"{home}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}", "HOME": str(home), "USER": USER}
        pipe = subprocess.PIPE
        with subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=home,
            env=environment,
            start_new_session=True,
        ) as process:
            pumps = [
                threading.Thread(target=_pump, args=(process.stdout, channel.sendall), daemon=True),
                threading.Thread(target=_pump, args=(process.stderr, channel.sendall_stderr), daemon=True),
            ]
            for pump in pumps:
                pump.start()
            self._feed(process, source)
            for pump in pumps:
                pump.join()
            return process.wait()

    def _feed(self, process: subprocess.Popen[bytes], source: Iterator[bytes]) -> None:
        """Give the command its input; one that ends without reading it is no error."""
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            for chunk in source:
                process.stdin.write(chunk)
                process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _pump(source: Any, send: Callable[[bytes], None]) -> None:
    """Pass on what a command writes, and throw it away once nobody listens any more."""
    listening = True
    while chunk := source.read1(_CHUNK_BYTES):
        if listening:
            try:
                send(chunk)
            except (OSError, EOFError, paramiko.SSHException):
                listening = False


LOOPBACK = "127.0.0.1"
_CHUNK_BYTES = 2**15
_ESTABLISHED = 1


class StubDrives(contextlib.AbstractContextManager["StubDrives"]):
    """Stub drives that listen while the block runs.

    Attributes:
        folder: holds keys, known_hosts, and one folder per drive: the home of its commands.
        peak_connections: most connections that were open at one time, over all drives.
    """

    def __init__(self, folder: Path, drives: Sequence[StubDrive]) -> None:
        """Make keys and folders for `drives` below `folder`."""
        self.folder = folder
        self.peak_connections = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._ended, self._end = socket.socketpair()
        self._client_key = paramiko.ECDSAKey.generate()
        self._client_key.write_private_key_file(str(folder / "id"))
        self._servers = [_Server(self, drive, self._client_key) for drive in drives]
        for server in self._servers:  # when all have a port: else another one may be given that of a closed one
            if server.drive.fault is StubFault.REFUSE:
                server.listener.close()
        self._write_known_hosts()

    def __enter__(self) -> StubDrives:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join()
        for server in self._servers:
            server.listener.close()
        self._ended.close()

    def home(self, name: str) -> Path:
        """Return the folder in which a drive's commands run."""
        return self.folder / name

    def write_inventory(self, connect_seconds: int = 5) -> Path:
        """Write an inventory of the drives and return its path.

        Args:
            connect_seconds: after which a drive that says nothing counts as not there.
        """
        (self.folder / "ssh_config").write_text(f"ConnectTimeout {connect_seconds}\nIdentityAgent none\n")
        content = {
            "name": "stubs",
            "defaults": {"user": USER, "key": "id", "known_hosts": "known_hosts", "ssh_config": "ssh_config"},
            "drives": {
                server.drive.name: {
                    "host": LOOPBACK,
                    "port": server.port,
                    "folder": str(self.home(server.drive.name) / "csd-emu"),
                }
                for server in self._servers
            },
        }
        path = self.folder / "inventory.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    def opened(self, connection: socket.socket) -> None:
        """Count a connection; one that the client has closed does not count, even if its thread has not seen it yet."""
        with self._lock:
            self._open.append(connection)
            self.peak_connections = max(self.peak_connections, sum(map(_is_open, self._open)))

    def closed(self, connection: socket.socket) -> None:
        """Count a connection no more, and close it."""
        with self._lock:
            self._open.remove(connection)
        connection.close()

    def _write_known_hosts(self) -> None:
        lines = [
            f"[{LOOPBACK}]:{server.port} {server.known_key.get_name()} {server.known_key.get_base64()}\n"
            for server in self._servers
        ]
        (self.folder / "known_hosts").write_text("".join(lines))

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ended, selectors.EVENT_READ, None)
            for server in self._servers:
                if server.drive.fault is not StubFault.REFUSE:
                    selector.register(server.listener, selectors.EVENT_READ, server)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    connection, _ = key.data.listener.accept()
                    self.opened(connection)
                    self._start(key.data.serve, connection)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()


def _is_open(connection: socket.socket) -> bool:
    try:
        state: int = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:  # this side has closed it
        return False
    return state == _ESTABLISHED


def _garbled_hello() -> bytes:
    """Return a banner and a KEXINIT packet (RFC 4253, sections 6 and 7.1) whose names of algorithms are no ASCII."""
    name = b"\xff\xfe\x80"
    lists = (len(name).to_bytes(4, "big") + name) * 10
    payload = b"\x14" + bytes(16) + lists + bytes(5)
    padding = 4 + -(5 + len(payload) + 4) % 8
    length = (1 + len(payload) + padding).to_bytes(4, "big")
    return b"SSH-2.0-stub\r\n" + length + bytes([padding]) + payload + bytes(padding)


class _Server:
    """One stub drive's server."""

    def __init__(self, drives: StubDrives, drive: StubDrive, client_key: Any) -> None:
        self.drive, self._drives, self.client_key = drive, drives, client_key
        self.known_key = paramiko.ECDSAKey.generate()
        self._key = paramiko.ECDSAKey.generate() if drive.fault is StubFault.WRONG_KEY else self.known_key
        self.listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self.listener.getsockname()[1]
        self.cuts_left = 1 if drive.fault is StubFault.CUT else 0
        self.home = drives.home(drive.name)
        furnish(self.home, drive.fault)

    def serve(self, connection: socket.socket) -> None:
        """Serve one connection to its end."""
        try:
            if self.drive.fault is StubFault.HANG:
                while connection.recv(_CHUNK_BYTES):
                    continue
            elif self.drive.fault is StubFault.NONSENSE:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            elif self.drive.fault is StubFault.GARBLED:
                connection.sendall(_garbled_hello())
                while connection.recv(_CHUNK_BYTES):
                    continue
            else:
                self._speak(connection)
        except (OSError, EOFError, paramiko.SSHException):
            return
        finally:
            self._drives.closed(connection)

    def _speak(self, connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        try:
            transport.add_server_key(self._key)
            session = StubSession(self, transport)
            transport.start_server(server=session)
            transport.join()
            session.join()
        finally:
            transport.close()
