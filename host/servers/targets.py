"""The list of the servers' exporters, for one Prometheus; kept by whoever keeps the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]

from csd_emu.servers import ServersConfig
from host.metrics.targets import write_targets
from host.servers.membership import exporter_key
from host.servers.store import read_texts

_LOOK_SECONDS = 1.0


async def keep_targets(store: Store, config: ServersConfig, path: Path) -> None:
    """Write the list whenever a server's exporter is new or somewhere else; goes on until it is cancelled.

    Raises:
        ConfigurationError: two servers have one address.
        EnvironmentUnfit: the file cannot be written.
    """
    keys = {server: exporter_key(config.name, server) for server in config.names}
    written: dict[str, str] = {}
    write_targets(path, written)
    while True:
        found = await asyncio.to_thread(read_texts, store, keys)
        if found != written:
            write_targets(path, found)
            written = found
        await asyncio.sleep(_LOOK_SECONDS)
