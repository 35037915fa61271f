"""One command on an SSH connection: what it reads, what it writes, and by when it must have ended."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import paramiko

from csd_emu.util.deadline import Deadline

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
