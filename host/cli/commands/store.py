"""`csd-emu store`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from csd_emu.config.servers_file import read_servers
from host.core.console import console
from host.core.interrupts import INTERRUPTS


def store(
    servers: Annotated[Path, typer.Argument(metavar="SERVERS.YAML", help="which servers find each other here")],
    targets: Annotated[
        Path | None,
        typer.Option("--targets", metavar="FILE", help="keep the list of their exporters there, for Prometheus"),
    ] = None,
) -> None:
    """Keep the store in which servers that train together find each other, until Ctrl-C, which is the normal end."""
    config = read_servers(servers)
    with INTERRUPTS.deferred():
        from host.training.multi_server.exporter_targets import keep_targets
        from host.training.multi_server.store.store_server import kept_store

    with kept_store(config.store) as kept:
        console.print(
            f"store of {config.name}: {config.store.address}:{config.store.port}, key {config.store.key}, until Ctrl-C",
            soft_wrap=True,
        )
        keeping = [] if targets is None else [keep_targets(kept, config, targets, partial(console.print, markup=False))]
        INTERRUPTS.run(INTERRUPTS.wait(*keeping))
