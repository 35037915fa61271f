"""Stub drives: SSH servers on loopback, many in one process, whose commands run in a real `sh`; some are broken.

What is real: the SSH protocol, host keys, login by key, exec channels, the shell and its files. What is not: the
drives have this machine's processor and disk, and the user that they call root is whoever runs them.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import paramiko
import yaml

from csd_lab.testkit.ssh_stub.stub_drive import USER, StubDrive, StubFault, furnish
from csd_lab.testkit.ssh_stub.stub_session import StubSession

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
        if drive.fault is StubFault.REFUSE:
            self.listener.close()

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
