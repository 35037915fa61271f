"""Addresses of the servers' exporters for one Prometheus, kept up to date by the process that runs the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from csd_emu.config.servers_file import ServersConfig
from firmware_agent.common.errors import CsdError
from host.training.multi_server.heartbeat import FailureDetector
from host.training.multi_server.membership import exporter_key, host_beats
from host.training.multi_server.prometheus_targets import write_targets
from host.training.multi_server.store.store_messages import Book

_LOOK_SECONDS = 1.0
# A server that was lost stays in the list for so long, so that alerts are told of it.
KEPT_SECONDS = 600.0


async def keep_targets(
    store: Book,
    config: ServersConfig,
    path: Path,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    look_seconds: float = _LOOK_SECONDS,
) -> None:
    """Write the list whenever a server's exporter is new, is somewhere else, or is out of it; until it is cancelled.

    A server is out of it when nothing was heard of its host for ten minutes. A list that cannot be, for two servers
    have one address or the file cannot be written, is told by `tell`, once, and tried again: the store, and with it the
    training, goes on.

    Raises:
        EnvironmentUnfit: the file cannot be written in the beginning.
    """
    keys = {server: exporter_key(config.name, server) for server in config.names}
    silence = FailureDetector(config.names, KEPT_SECONDS, clock())
    written: dict[str, str] = {}
    told_last = ""
    write_targets(path, written)
    while True:
        beats = await asyncio.to_thread(host_beats, store, config)
        gone = silence.hear(beats, clock())
        told = await asyncio.to_thread(_read_texts, store, keys)
        found = {server: place for server, place in told.items() if server not in gone}
        if found != written:
            try:
                write_targets(path, found)
                written, told_last = found, ""
            except CsdError as error:
                if str(error) != told_last:
                    tell(told_last := str(error))
        await asyncio.sleep(look_seconds)


def _read_texts(store: Book, keys: Mapping[str, str]) -> dict[str, str]:
    """Return name -> text of those `keys` (by name) that are written."""
    texts = zip(keys, store.read(list(keys.values())), strict=True)
    return {name: text.decode(errors="replace") for name, text in texts if text is not None}
