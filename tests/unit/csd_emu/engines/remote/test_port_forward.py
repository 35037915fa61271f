"""A port on a drive that leads back: how much of this process the drive may take with it."""

import socket
import threading
from collections.abc import Callable
from typing import Any

from csd_emu.engines.remote.ssh_channel import MOST_CHANNELS, forward_back


class Transport:
    """An SSH connection whose drive opens channels as it likes."""

    def __init__(self) -> None:
        self.open: Callable[..., None] = lambda *_: None

    def request_port_forward(self, address: str, port: int, handler: Callable[..., None]) -> int:
        self.open = handler
        return 4711


class Channel:
    """One that says nothing until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def recv(self, size: int) -> bytes:
        self.closed.wait()
        return b""

    def sendall(self, data: bytes) -> None:
        pass

    def shutdown_write(self) -> None:
        pass

    def close(self) -> None:
        self.closed.set()


def test_a_drive_that_opens_channels_without_end_has_a_few_of_them() -> None:
    """513 of them took all files of a run."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        transport: Any = Transport()
        assert forward_back(transport, "csd-00", "127.0.0.1", listener.getsockname()[1]) == 4711
        before = threading.active_count()
        channels = [Channel() for _ in range(600)]
        for channel in channels:
            transport.open(channel, None, None)
        assert sum(channel.closed.is_set() for channel in channels) == 600 - MOST_CHANNELS
        assert threading.active_count() - before <= 2 * MOST_CHANNELS
        for channel in channels:
            channel.close()
        accepted = [listener.accept()[0] for _ in range(MOST_CHANNELS)]
        for each in accepted:
            each.close()
        while True:  # as soon as one has ended another may be opened
            again = Channel()
            transport.open(again, None, None)
            if not again.closed.is_set():
                break
        again.close()
