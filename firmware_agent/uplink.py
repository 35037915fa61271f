"""The only way out of an emulated drive: a process that carries bytes between a loopback port and the virtio port.

An emulated drive has no network. QEMU connects its virtio port to the host's port for drives, and connects it again
when that connection has ended; nothing in the drive can name another destination. The agent dials the loopback port, so
that it dials as on every other device. One connection is carried at a time.

The process is a script of the standard library alone, started before the template is taken, so that clones share its
memory. What the kernel calls carrier is the cable of a network card that leads nowhere: while it is out, nothing is
carried and nothing is closed, as with any cable.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from pathlib import Path

_PORTS = Path("/sys/class/virtio-ports")
_DEVICES = Path("/dev")
_CARRIER = Path("/sys/class/net/eth0/carrier")
_LOOPBACK = "127.0.0.1"
# The kernel hands out what came in pages, and takes at most eight of them in one go.
_PAGE_BYTES, _BLOCK_BYTES = 4096, 64 << 10
# No TLS record is that long, so none that was begun can swallow it: the host's TLS fails, and closes the connection.
_NOISE = b"\xff" * (20 << 10)
# Seconds for the host to hang up by itself, as it does at the end of a run, and to respond to the noise.
_PATIENCE_SECONDS, _BREAK_SECONDS = 2.0, 5.0
_POLL_SECONDS = 0.1
_RTMGRP_LINK = 1


class Cable:
    """Whether the cable of the network card is plugged in; without a card it is."""

    def __init__(self, messages: socket.socket, carrier: Path = _CARRIER) -> None:
        """Watch the file in which the kernel says so, whenever it sends a message, on a socket that does not block."""
        self.messages, self._carrier = messages, carrier
        self.plugged = self._look()

    def update(self) -> None:
        """Look again, once a message has come."""
        with contextlib.suppress(OSError):  # none left; or more came than were kept
            while self.messages.recv(_BLOCK_BYTES):
                pass
        self.plugged = self._look()

    def wait(self) -> None:
        """Return when it is plugged in."""
        while not self.plugged:
            select.select([self.messages], [], [])
            self.update()

    def _look(self) -> bool:
        try:
            return self._carrier.read_text(encoding="ascii").strip() != "0"
        except OSError:
            return True


class Carrier:
    """Carries one connection after the other through a virtio port, a file descriptor that does not block."""

    def __init__(self, port: int, cable: Cable) -> None:
        """Take over an open port."""
        self._port, self._cable = port, cable
        self._block = bytearray(_BLOCK_BYTES)
        whole = memoryview(self._block)
        self._whole = whole
        self._pages = [whole[begin : begin + _PAGE_BYTES] for begin in range(0, _BLOCK_BYTES, _PAGE_BYTES)]

    def serve(self, connection: socket.socket) -> None:
        """Carry one connection until either side ends it; without a host it ends at once, as if refused."""
        self._cable.wait()
        with connection:
            connection.setblocking(False)
            if not self.connected or _ended(connection):
                return
            if self._carry(connection):
                self._break_off()

    @property
    def connected(self) -> bool:
        """Whether the host has a connection to this port."""
        return not self._port_events(select.POLLIN, 0) & select.POLLHUP

    def _carry(self, connection: socket.socket) -> bool:
        """Return whether the host has to be told that the connection has ended."""
        up, down, ended, begun = memoryview(b""), memoryview(b""), False, False
        while up or not ended:
            events = self._wait(connection, bool(up), bool(down), ended)
            if events.get(connection.fileno(), 0) and not up and not ended:
                up, ended = _received(connection)
                begun = begun or bool(up)
            at_port = events.get(self._port, 0)
            if up and at_port & select.POLLOUT:
                up = up[self._write(up) :]
            if at_port and not down:
                if (count := self._read()) == 0:
                    return False
                down = self._whole[: max(count, 0)]
            if down:
                down = down[_sent(connection, down) :]
        return begun

    def _wait(self, connection: socket.socket, up: bool, down: bool, ended: bool) -> dict[int, int]:
        """Return what can be done next: each side is read while nothing waits for the other one."""
        cable, poll = self._cable.messages.fileno(), select.poll()
        poll.register(cable, select.POLLIN)
        if self._cable.plugged:
            reads = not up and not ended
            if reads or down:
                poll.register(connection, select.POLLIN * reads | select.POLLOUT * down)
            if up or not down:
                poll.register(self._port, select.POLLIN * (not down) | select.POLLOUT * up)
        events = dict(poll.poll())
        if cable in events:
            self._cable.update()
        return events if self._cable.plugged else {}

    def _break_off(self) -> None:
        """Have the host close its connection, which QEMU does not do when the drive does."""
        noise, begin = memoryview(_NOISE), time.monotonic()
        while (passed := time.monotonic() - begin) < _PATIENCE_SECONDS + _BREAK_SECONDS:
            self._cable.wait()
            wanted = select.POLLIN | (select.POLLOUT if noise and passed > _PATIENCE_SECONDS else 0)
            at_port = self._port_events(wanted, int(1000 * _POLL_SECONDS))
            if at_port and self._read() == 0:
                return
            if at_port & wanted & select.POLLOUT:
                noise = noise[self._write(noise) :]

    def _port_events(self, wanted: int, milliseconds: int) -> int:
        """Return which of the wanted events the port has by then, and whether the host has gone; 0 for nothing."""
        poll = select.poll()
        poll.register(self._port, wanted)
        return dict(poll.poll(milliseconds)).get(self._port, 0)

    def _read(self) -> int:
        """Return how many bytes were read into the block: 0 if the host has gone, -1 if there is nothing."""
        try:
            return os.readv(self._port, self._pages)
        except BlockingIOError:
            return -1

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._port, data)
        except BlockingIOError:
            return 0


def _ended(connection: socket.socket) -> bool:
    """Return whether the other side has given up already, while nobody took its call."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _received(connection: socket.socket) -> tuple[memoryview, bool]:
    """Return what has come, and whether that was the end."""
    try:
        data = connection.recv(_BLOCK_BYTES)
    except BlockingIOError:
        return memoryview(b""), False
    except OSError:
        return memoryview(b""), True
    return memoryview(data), not data


def _sent(connection: socket.socket, data: memoryview) -> int:
    """Return how much of `data` was taken; of a side that has gone, all."""
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)


def open_port(name: str, ports: Path = _PORTS, devices: Path = _DEVICES) -> int:
    """Return the virtio port of this name, opened, once it is there."""
    while True:
        for entry in ports.glob("*"):
            with contextlib.suppress(OSError):
                if (entry / "name").read_text(encoding="ascii").strip() == name:
                    return os.open(devices / entry.name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        time.sleep(_POLL_SECONDS)


def main() -> None:
    """Listen on the loopback port that standard input names, until it ends; the argument names the virtio port."""
    messages = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK)
    messages.bind((0, _RTMGRP_LINK))
    carrier = Carrier(open_port(sys.argv[1]), Cable(messages))
    if not (line := sys.stdin.buffer.readline()):  # the agent has ended
        return
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((_LOOPBACK, int(line)))
        listening.listen(1)
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                carrier.serve(connection)
            except OSError as error:  # whatever it was, the agent dials again
                sys.stderr.write(f"uplink: {error}\n")


if __name__ == "__main__":
    main()
