"""Additions of steps that several servers take together to the series of a server."""

from __future__ import annotations

from dataclasses import dataclass

from host.monitoring.metrics import server_names as names
from host.monitoring.metrics.series_store import Store


@dataclass
class ServerCounts:
    """What steps since the last round have added, and whose clock their seconds are of."""

    clock: str
    steps: int = 0
    reduced_bytes: int = 0
    reduce_seconds: float = 0.0
    waited_seconds: float = 0.0

    def add(self, reduced_bytes: int, reduce_seconds: float, waited_seconds: float) -> None:
        """Add a step."""
        self.steps += 1
        self.reduced_bytes += reduced_bytes
        self.reduce_seconds += reduce_seconds
        self.waited_seconds += waited_seconds


def begin_servers(store: Store, expected: int, clock: str) -> None:
    """Make the series of a server among others, counters at 0 if they are new."""
    store.set(names.SERVERS_EXPECTED, (), expected)
    store.set(names.SERVERS, (), expected)
    for metric in (names.SERVER_STEPS, names.ALLREDUCE_BYTES, names.RENDEZVOUS):
        store.add(metric, ())
    for metric in (names.ALLREDUCE_SECONDS, names.SERVER_WAIT_SECONDS):
        store.add(metric, (clock,))


def add_server_steps(store: Store, counts: ServerCounts) -> None:
    """Add what a round's steps have counted."""
    store.add(names.SERVER_STEPS, (), counts.steps)
    store.add(names.ALLREDUCE_BYTES, (), counts.reduced_bytes)
    store.add(names.ALLREDUCE_SECONDS, (counts.clock,), counts.reduce_seconds)
    store.add(names.SERVER_WAIT_SECONDS, (counts.clock,), counts.waited_seconds)
