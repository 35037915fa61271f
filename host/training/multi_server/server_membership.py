"""A run's part in several servers: it joins them before anything starts, and leaves when its training is done."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from firmware_agent.common.errors import DeviceLost
from host.config.job_file import JobConfig
from host.config.server_group import ServerGroup
from host.core.states.peer_servers import StateBehind
from host.core.states.training_state import hash_weights, pack_state, unpack_state
from host.training.multi_server.code_hash import code_sha256
from host.training.multi_server.collective import ServersTogether
from host.training.multi_server.membership import Claim, exporter_key, member
from host.training.multi_server.store.store_client import connect
from host.training.multi_server.worker.worker_link import WorkerLink
from host.training.multi_server.worker.worker_process import WorkerPlan, WorkerProcess, own_address
from host.training.training_protocol import Training

# What the workers write goes into the run's directory.
LOG = "servers.log"
# What may change before a run is resumed, but only on all servers alike.
_ALIKE_JOB_KEYS = {"rounds", "target", "planner"}
_FAREWELL_SECONDS, _LAST_WORD_SECONDS = 30.0, 2.0


@dataclass(frozen=True)
class ServerMembership:
    """One of the servers that train together: the `run` that it takes part in, and its worker's socket."""

    server_group: ServerGroup
    run: str
    socket: Path


@contextlib.contextmanager
def joined(
    server_group: ServerGroup | None, array: str, alike: Callable[[ServerGroup], str], runtime: Path
) -> Iterator[ServerMembership | None]:
    """Take part in the other servers' run while the block lasts; None if there is but one server.

    Args:
        server_group: the servers; None if there is one.
        array: the name of this server's array.
        alike: returns the hash that all servers must have alike (see `alike_sha256`).
        runtime: the folder of the worker's socket.

    Raises:
        CsdError: this server cannot take part (see `membership.member`); nothing was started.
    """
    if server_group is None:
        yield None
        return
    own_address(server_group.config, server_group.server)
    claim = Claim(code_sha256(), server_group.sha256, alike(server_group))
    with member(server_group.config, server_group.server, claim) as run:
        yield ServerMembership(server_group, run, runtime / f"{array}.worker")


def alike_sha256(job: JobConfig, trajectory_sha256: str) -> str:
    """Return the hash of a job, and of what may change before a run is resumed, but then on all servers alike."""
    told = job.model_dump_json(include=_ALIKE_JOB_KEYS)
    return hashlib.sha256(f"{trajectory_sha256} {told}".encode()).hexdigest()


@contextlib.asynccontextmanager
async def meeting(
    this: ServerMembership | None, directory: Path, note: Callable[[str], None]
) -> AsyncIterator[ServersTogether | None]:
    """Have a worker that takes turns with those of other servers while the block lasts; `note` is for the records."""
    if this is None:
        yield None
        return
    config, server = this.server_group.config, this.server_group.server
    plan = WorkerPlan(config, server, this.run, this.socket, directory / LOG)
    async with WorkerLink(this.socket, config.membership.wait) as link, WorkerProcess(plan):
        yield ServersTogether(server, link, config.link, config.reduce_every, note)


def publish_exporter(this: ServerMembership, page: str) -> None:
    """Write into the store where this server's exporter is, whose page has the address `page`; for Prometheus.

    An exporter on the loopback interface is reached there, whatever the server's address.
    """
    place = urlsplit(page).netloc
    with contextlib.closing(connect(this.server_group.config.store)) as store:
        store.set(exporter_key(this.server_group.config.name, this.server_group.server), place)


async def say_farewell(together: ServersTogether, training: Training) -> None:
    """Let the others take what they still need of this server, if they can, before it leaves.

    Two turns: the first is the last that counts. Whoever has the outcome of the second knows that all have that of the
    first, and need its worker no longer; whoever misses it has no more than a moment's wait.
    """
    for patience_seconds in (_FAREWELL_SECONDS, _LAST_WORD_SECONDS):
        with contextlib.suppress(TimeoutError, DeviceLost):
            async with asyncio.timeout(patience_seconds):
                await _take_last_turn(together, training)


async def _take_last_turn(together: ServersTogether, training: Training) -> None:
    while True:
        state = training.state()
        weights = await asyncio.to_thread(hash_weights, state.weights)
        try:
            await together.begin(int(state.progress["step"]) + 1, [], weights, lambda: pack_state(training.state()))
            return
        except StateBehind as ahead:
            training.restore(unpack_state(ahead.state))
