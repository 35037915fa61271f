"""Command-line arguments of a server's worker."""

from __future__ import annotations

import msgspec


class Arguments(msgspec.Struct, frozen=True):
    """What a worker is started with, as JSON.

    Attributes:
        server: its own.
        servers: all names, in the order of the servers file.
        host: the Unix socket of its host.
        store: address, port and key file of the store that outlives all servers.
        run: the run that they take part in.
        least: with fewer servers nobody begins.
        silence_seconds: a server of which nothing was heard for so long is lost.
    """

    server: str
    servers: list[str]
    host: str
    store: tuple[str, int, str]
    run: str
    least: int
    silence_seconds: float
