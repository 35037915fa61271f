"""Additions of steps that several servers take together to the series of a server."""

from __future__ import annotations

from host.core.records import ServersRecord
from host.monitoring.metrics import server_names as names
from host.monitoring.metrics.series_store import Store


def begin_servers(store: Store, expected: int, clock: str) -> None:
    """Make the series of a server among others, counters at 0 if they are new."""
    store.set(names.SERVERS_EXPECTED, (), expected)
    store.set(names.SERVERS, (), expected)
    for metric in (names.SERVER_STEPS, names.ALLREDUCE_BYTES, names.RENDEZVOUS):
        store.add(metric, ())
    for metric in (names.ALLREDUCE_SECONDS, names.SERVER_WAIT_SECONDS):
        store.add(metric, (clock,))


def show_servers(store: Store, servers: ServersRecord) -> None:
    """Show who took a step, and how often they met anew, as soon as it has ended, for alerts."""
    store.add(names.RENDEZVOUS, (), servers.meetings)
    store.set(names.SERVERS, (), len(servers.present))


def add_servers(store: Store, servers: ServersRecord, clock: str) -> None:
    """Add what a step of a round that is over had to do with other servers; its seconds are of `clock`."""
    store.add(names.SERVER_STEPS, (), 1)
    store.add(names.ALLREDUCE_BYTES, (), servers.sent_bytes)
    store.add(names.ALLREDUCE_SECONDS, (clock,), servers.reduce_seconds)
    store.add(names.SERVER_WAIT_SECONDS, (clock,), servers.waited_seconds)
