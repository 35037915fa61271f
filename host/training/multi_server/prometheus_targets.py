"""Prometheus' list of the servers that take part, kept up to date by the process that runs the store.

Prometheus' file-based service discovery reads it (`file_sd_configs`), again whenever it changes. A target label
`server` is on every series of a target, `up` included: so even a server that has never answered has a name.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from csd_emu.config.servers_file import ServersConfig
from firmware_agent.common.errors import ConfigurationError, CsdError
from host.core.owned_files import write_whole
from host.training.multi_server.membership import exporter_key, host_beats
from host.training.multi_server.rendezvous import FailureDetector
from host.training.multi_server.store.store_client import Book

# An address or a name of DNS, then a port: what Prometheus is told to ask, and nothing else.
_PLACE = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")


def render_targets(servers: Mapping[str, str]) -> str:
    """Return the file's text: `servers` is server's name -> ``host:port`` of its exporter, as Prometheus reaches it.

    Raises:
        ConfigurationError: an address is no ``host:port``, or two servers have the same.
    """
    taken: dict[str, str] = {}
    for server, address in servers.items():
        found = _PLACE.fullmatch(address)
        if found is None or not 0 < int(found[1]) < 1 << 16:
            raise ConfigurationError(
                f"server {server}: {address!r} is no address of an exporter; give host:port, as in 10.0.0.1:9464"
            )
        if address in taken:
            raise ConfigurationError(
                f"servers {taken[address]} and {server} both export on {address}; give each its own host.metrics_port"
            )
        taken[address] = server
    return json.dumps([{"targets": [servers[name]], "labels": {"server": name}} for name in servers], indent=2) + "\n"


def write_targets(path: Path, servers: Mapping[str, str]) -> None:
    """Write the file in one piece, so that Prometheus never reads half of it.

    Raises:
        ConfigurationError: see `render_targets`; nothing is written.
        EnvironmentUnfit: it cannot be written.
    """
    write_whole(path, render_targets(servers).encode(), "choose another place", "Prometheus' targets", folder=True)


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
        gone = silence.hear(await asyncio.to_thread(host_beats, store, config), clock())
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
