"""What goes over an SSH connection: commands with all they read and write, and ports that lead back to this machine."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import paramiko

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DriveUnfit

MAX_OUTPUT_BYTES = 2**24
_CHUNK_BYTES = 2**15
_SEND_SECONDS = 0.2
# A command may leave a child behind that holds its output; after its end, more is awaited for so long.
_LINGER_SECONDS = 2.0

OnSent = Callable[[int], None]


class Written(NamedTuple):
    """What a command left; `code` is -1 if a signal ended it, None if the connection broke first."""

    code: int | None
    out: bytes
    err: bytes


class OutOfTime(Exception):
    """The deadline passed while the command ran."""


class TooMuch(Exception):
    """The command wrote more than `MAX_OUTPUT_BYTES`."""


def execute(transport: Any, line: str, source: BinaryIO, deadline: Deadline, on_sent: OnSent | None = None) -> Written:
    """Run `line` on the far side, with what is in `source` as its standard input.

    Args:
        transport: paramiko's, open and logged in.
        line: for the far user's shell.
        source: read to its end.
        deadline: by which the command must have ended.
        on_sent: is told how many bytes have been sent.

    Raises:
        OutOfTime: it has not ended by the deadline; the channel is closed, which ends most commands.
        TooMuch: see there.
        paramiko.SSHException, OSError, EOFError: the connection broke before the command began.
    """
    channel = transport.open_session(timeout=max(0.1, deadline.left_seconds))
    try:
        channel.settimeout(max(0.1, deadline.left_seconds))
        channel.exec_command(line)
        output = _Output(channel)
        _send(channel, source, output, deadline, on_sent)
        return _finish(channel, output, deadline)
    finally:
        channel.close()


class _Output:
    """What has been read of a channel."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.out, self.err = bytearray(), bytearray()

    def drain(self) -> None:
        """Read what is there, without waiting."""
        while self._channel.recv_ready():
            self.out += self._channel.recv(_CHUNK_BYTES)
        while self._channel.recv_stderr_ready():
            self.err += self._channel.recv_stderr(_CHUNK_BYTES)
        if len(self.out) + len(self.err) > MAX_OUTPUT_BYTES:
            raise TooMuch


def _send(channel: Any, source: BinaryIO, output: _Output, deadline: Deadline, on_sent: OnSent | None) -> None:
    """Send all input; a command that ends without reading all of it is no error."""
    sent, chunk = 0, memoryview(b"")
    while chunk or (chunk := memoryview(source.read(_CHUNK_BYTES))):
        if deadline.expired:
            raise OutOfTime
        output.drain()
        channel.settimeout(_SEND_SECONDS)
        try:
            done = channel.send(chunk)
        except TimeoutError:
            continue
        except OSError:  # the far side has closed the channel; its exit code says why
            return
        if not done:
            return
        chunk, sent = chunk[done:], sent + done
        if on_sent is not None:
            on_sent(sent)
    try:
        channel.shutdown_write()
    except (OSError, EOFError, paramiko.SSHException):
        return


def _finish(channel: Any, output: _Output, deadline: Deadline) -> Written:
    """Read until the command has ended and its output too."""
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    linger: Deadline | None = None
    while True:
        output.drain()
        ended = channel.exit_status_ready()
        if channel.eof_received or channel.closed or (linger is not None and linger.expired):
            break
        if deadline.expired:
            raise OutOfTime
        if ended and linger is None:
            linger = Deadline(_LINGER_SECONDS)
        limit = min(deadline.left_seconds, linger.left_seconds if linger else deadline.left_seconds, 1.0)
        poll.poll(1 + 1000 * limit)
    if not channel.status_event.wait(deadline.left_seconds):
        raise OutOfTime
    output.drain()
    broke = channel.exit_status == -1 and not channel.get_transport().is_active()
    return Written(None if broke else channel.exit_status, bytes(output.out), bytes(output.err))


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
