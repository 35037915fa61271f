"""`csd-emu store`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.config import load_config
from csd_emu.servers import ServersConfig
from host.console import console
from host.interrupts import INTERRUPTS


def store(
    servers: Annotated[Path, typer.Argument(metavar="SERVERS.YAML", help="which servers find each other here")],
) -> None:
    """Keep the store in which servers that train together find each other, until Ctrl-C, which is the normal end."""
    config = load_config(servers, ServersConfig)
    with INTERRUPTS.deferred():
        from host.servers.store import kept_store

    with kept_store(config.store):
        console.print(f"store of {config.name}: {config.store.address}:{config.store.port}, until Ctrl-C")
        INTERRUPTS.run(INTERRUPTS.wait())
