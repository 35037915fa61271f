"""A port on a drive that leads back to this machine, through the SSH connection: for drives that cannot dial it."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from typing import Any

import paramiko

from firmware_agent.common.errors import DriveUnfit

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
# An agent needs one, for a moment two; each is two threads and a file of this process.
MOST_CHANNELS = 8
_BLOCK_BYTES = 1 << 16
_CONNECT_SECONDS = 10.0


def forward_back(transport: Any, drive: str, host: str, port: int, drive_port: int = 0) -> int:
    """Have a drive's SSH server listen on the drive's loopback, and lead what comes in to ``host:port`` as seen here.

    It ends with the connection. Channels beyond `MOST_CHANNELS` at once are closed as they come.

    Args:
        transport: paramiko's, of an open connection.
        drive: its name, for errors.
        host: address that is dialled from here.
        port: and its port.
        drive_port: on which the drive listens; 0 for any free one.

    Returns:
        The port on which the drive listens.

    Raises:
        DriveUnfit: its SSH server does not allow that, or the port is taken.
    """
    free = threading.Semaphore(MOST_CHANNELS)

    def lead(channel: Any, _origin: object, _server: object) -> None:
        if not free.acquire(blocking=False):
            log.debug("drive %s: has %d channels already", drive, MOST_CHANNELS)
            channel.close()
            return
        threading.Thread(target=carry, args=(channel,), daemon=True).start()

    def carry(channel: Any) -> None:
        try:
            _lead(channel, host, port)
        finally:
            free.release()

    try:
        return int(transport.request_port_forward(LOOPBACK, drive_port, lead))
    except paramiko.SSHException as error:
        raise DriveUnfit(
            f"drive {drive}: its SSH server forwards no port back ({error}); set AllowTcpForwarding yes (or remote) "
            "there, or give host_address an address in the inventory"
        ) from error


def _lead(channel: Any, host: str, port: int) -> None:
    """Carry bytes both ways until one side ends."""
    with contextlib.closing(channel):
        try:
            sink = socket.create_connection((host, port), _CONNECT_SECONDS)
        except OSError:  # no run listens: the agent dials again
            return
        with sink:
            sink.settimeout(None)
            sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=_carry, args=(sink, channel), daemon=True)
            back.start()
            _carry(channel, sink)
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)
            back.join()


def _carry(source: Any, target: Any) -> None:
    with contextlib.suppress(OSError, EOFError):
        while block := source.recv(_BLOCK_BYTES):
            target.sendall(block)
    with contextlib.suppress(OSError, EOFError):
        target.shutdown(socket.SHUT_WR) if isinstance(target, socket.socket) else target.shutdown_write()
