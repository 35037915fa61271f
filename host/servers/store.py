"""The store in which servers find each other: it outlives every one of them, so that those who are left meet anew."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Protocol

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from csd_emu.servers import StoreSection
from firmware_agent.errors import EnvironmentUnfit

# A server's clock may be off by so much from the store's: the agents' rendezvous compares times of day.
MAX_SKEW_SECONDS = 2.0
_TIME_KEY = "time"
_TICK_SECONDS = 0.5
_BACKLOG = 4096
_PATIENCE = timedelta(seconds=10)


def serve_store(address: str, port: int, patience: timedelta = _PATIENCE) -> TCPStore:
    """Serve a store on this address alone, and return it; it ends with the process or its last reference.

    torch by itself would listen on every address of the machine.

    Raises:
        OSError: the port is in use, or the address is not this machine's.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    port = listener.getsockname()[1]
    # The store owns the socket from here on.
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=patience,
        master_listen_fd=listener.detach(),
    )


def connect(section: StoreSection, patience: timedelta = _PATIENCE) -> TCPStore:
    """Return a client of the store.

    Raises:
        EnvironmentUnfit: nobody answers there.
    """
    try:
        with socket.create_connection((str(section.address), section.port), patience.total_seconds()):
            pass  # torch would try for its whole patience, and write about it
        return TCPStore(str(section.address), section.port, timeout=patience)
    except (OSError, DistError) as error:
        raise EnvironmentUnfit(
            f"store: nobody answers at {section.address}:{section.port} ({error}); start csd-emu store there, and let "
            "the network through"
        ) from error


@contextlib.contextmanager
def kept_store(section: StoreSection) -> Iterator[TCPStore]:
    """Serve the servers' store, which tells them the time of day, while the block lasts.

    Raises:
        EnvironmentUnfit: it cannot listen there.
    """
    try:
        store = serve_store(str(section.address), section.port)
    except (OSError, DistError) as error:
        raise EnvironmentUnfit(
            f"store: cannot listen on {section.address}:{section.port} ({error}); is a store there already, or is the "
            "address another machine's?"
        ) from error
    done = threading.Event()
    clock = TCPStore(str(section.address), section.port, timeout=_PATIENCE)
    thread = threading.Thread(target=_tick, args=(clock, done), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        done.set()
        thread.join(_PATIENCE.total_seconds())


class Texts(Protocol):
    """A store's texts."""

    def get(self, key: str, /) -> bytes:
        """Return a text; waits until it is written."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all are written."""


def read_texts(store: Texts, keys: Mapping[str, str]) -> dict[str, str]:
    """Return name -> text of those `keys` (by name) that are written."""
    return {name: store.get(key).decode() for name, key in keys.items() if store.check([key])}


def check_clock(store: Texts, server: str) -> None:
    """Refuse to take part with a clock that is far from the store's.

    Raises:
        EnvironmentUnfit: it is.
    """
    told = float(store.get(_TIME_KEY))
    skew = time.time() - told
    if abs(skew) > MAX_SKEW_SECONDS + _TICK_SECONDS:
        way = "ahead of" if skew > 0 else "behind"
        raise EnvironmentUnfit(
            f"the clock of server {server} is {abs(skew):.0f} s {way} the store's; set all servers' clocks (NTP): the "
            f"agents compare times of day, and {MAX_SKEW_SECONDS:.0f} s is the most that they may differ by"
        )


def _tick(store: TCPStore, done: threading.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the store has ended
        while True:
            store.set(_TIME_KEY, repr(time.time()))
            if done.wait(_TICK_SECONDS):
                return
