"""The worker as a process of the host's: kept alive with a byte a second, started anew when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

import msgspec
import psutil

from csd_emu.config.servers_file import ServersConfig
from firmware_agent.common.errors import ConfigurationError
from host.core.owned_files import writing


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


# The host says so often that it is there.
BEAT, BEAT_SECONDS = b".", 1.0
# From the end of a worker to the start of the next; longer if it has not lived long, as without a store.
_AGAIN_SECONDS, _SOON_SECONDS, _YOUNG_SECONDS = 1.0, 0.1, 10.0
_STOP_SECONDS = 20.0


def own_address(config: ServersConfig, server: str) -> tuple[IPv4Address, str]:
    """Return this machine's address in the servers' network, and the interface that has it.

    Raises:
        ConfigurationError: it has none there.
    """
    wanted = config.group_of(server).address
    every = [
        (IPv4Address(address.address), interface)
        for interface, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family.name == "AF_INET"
    ]
    # gloo is told the interface, and listens on its first address.
    first = {interface: address for address, interface in reversed(every)}
    inside = [(own, interface) for own, interface in every if own in config.network]
    found = [(own, interface) for own, interface in inside if first[interface] in config.network]
    for address, interface in found:
        if wanted is None or address == wanted:
            return address, interface
    # Every address of this block is the loopback interface's, whichever of them is listed.
    if wanted is not None and wanted.is_loopback and found:
        return wanted, found[0][1]
    for address, interface in inside:
        if (wanted is None or address == wanted) and (address, interface) not in found:
            raise ConfigurationError(
                f"server {server}: {interface} has {first[interface]} before {address}, and gloo listens on an "
                f"interface's first address, which is not in {config.network}; put {address} first, or on an interface "
                "of its own"
            )
    what = f"the address {wanted}" if wanted is not None else f"an address in {config.network}"
    raise ConfigurationError(
        f"server {server}: this machine does not have {what}, so there is nothing that the servers' traffic can be "
        "bound to; correct network or address in the servers file, or run this on the right machine"
    )


@dataclass(frozen=True)
class WorkerPlan:
    """What the worker is started with."""

    config: ServersConfig
    server: str
    run: str
    socket: Path
    log: Path

    def launch(self) -> tuple[list[str], Mapping[str, str]]:
        """Return command line and environment, for the address that this machine has now.

        Raises:
            ConfigurationError: see `own_address`.
        """
        _, interface = own_address(self.config, self.server)
        # gloo is bound to the servers' network.
        return self._command(), os.environ | {"GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}

    def _command(self) -> list[str]:
        config, store = self.config, self.config.store
        worker = Arguments(
            server=self.server,
            servers=config.names,
            host=str(self.socket),
            store=(str(store.address), store.port, store.key),
            run=self.run,
            least=config.membership.min,
            silence_seconds=config.membership.silence,
        )
        return [
            sys.executable,
            "-P",
            "-m",
            "host.training.multi_server.worker.worker",
            msgspec.json.encode(worker).decode(),
        ]


class WorkerProcess:
    """Keeps a worker running while it is open; an async context manager."""

    def __init__(self, plan: WorkerPlan) -> None:
        """Start nothing yet."""
        self._plan, self._closing = plan, asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._log = -1

    async def __aenter__(self) -> WorkerProcess:
        with writing(self._plan.log, "free some space"):
            self._log = os.open(self._plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._task = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        try:
            if self._task is not None:
                await self._task
        finally:
            os.close(self._log)

    async def _keep(self) -> None:
        """Start one worker after another; a turn times out if none of them joins the others."""
        while not self._closing.is_set():
            begin = time.monotonic()
            try:
                await self._run_one()
            except (OSError, ConfigurationError) as error:  # as when the network's address is gone for a while
                with contextlib.suppress(OSError):
                    os.write(self._log, f"csd-emu: {error}\n".encode())
            young = time.monotonic() - begin < _YOUNG_SECONDS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), _AGAIN_SECONDS if young else _SOON_SECONDS)

    async def _run_one(self) -> None:
        """Run one worker to its end: its own, or the host's wish."""
        command, environment = self._plan.launch()
        read, write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=read,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            os.close(write)
            raise
        finally:
            os.close(read)
        ended, closing = (asyncio.ensure_future(wait) for wait in (process.wait(), self._closing.wait()))
        try:
            while not ended.done() and not closing.done():
                with contextlib.suppress(BrokenPipeError):
                    os.write(write, BEAT)
                await asyncio.wait((ended, closing), timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            os.close(write)  # the worker ends with its standard input
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), _STOP_SECONDS)
            if not ended.done():
                os.killpg(process.pid, signal.SIGKILL)
                await ended
