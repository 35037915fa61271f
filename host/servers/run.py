"""A run's part in several servers: it joins them before anything starts, and leaves when its training is done."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from firmware_agent.errors import DeviceLost
from host.metrics.state import MetricsState
from host.records import RoundRecord
from host.run_request import RunRequest
from host.servers.code import code_sha256
from host.servers.hall import Hall
from host.servers.link import WorkerLink
from host.servers.membership import Claim, exporter_key, member
from host.servers.process import WorkerPlan, WorkerProcess, own_address
from host.servers.store_client import connect
from host.servers.together import ServersTogether
from host.sync.states import hash_weights, pack_state, unpack_state
from host.sync.together import CaughtUp
from host.training import Training

# What the workers write goes into the run's directory.
LOG = "servers.log"
# What may change before a run is resumed, but only on all servers alike.
_ALIKE_JOB_KEYS = {"rounds", "target", "planner"}
_FAREWELL_SECONDS, _LAST_WORD_SECONDS = 30.0, 2.0


@dataclass(frozen=True)
class Member:
    """One of the servers that train together: the `run` that it takes part in, and its worker's socket."""

    hall: Hall
    run: str
    socket: Path


@contextlib.contextmanager
def joined(request: RunRequest, runtime: Path) -> Iterator[Member | None]:
    """Take part in the other servers' run while the block lasts; None if there is but one server.

    Raises:
        CsdError: this server cannot take part (see `host.servers.membership.member`); nothing was started.
    """
    hall = request.hall
    if hall is None:
        yield None
        return
    own_address(hall.config, hall.server)
    claim = Claim(code_sha256(), hall.sha256, alike_sha256(request, hall))
    with member(hall.config, hall.server, claim) as run:
        yield Member(hall, run, runtime / f"{request.config.name}.worker")


def alike_sha256(request: RunRequest, hall: Hall) -> str:
    """Return the hash of a job, and of what may change before a run is resumed, but then on all servers alike."""
    told = request.job.model_dump_json(include=_ALIKE_JOB_KEYS)
    return hashlib.sha256(f"{request.trajectory_sha256(hall.whole)} {told}".encode()).hexdigest()


@contextlib.asynccontextmanager
async def meeting(
    this: Member | None, directory: Path, note: Callable[[str], None]
) -> AsyncIterator[ServersTogether | None]:
    """Have a worker that takes turns with those of other servers while the block lasts; `note` is for the records."""
    if this is None:
        yield None
        return
    config, server = this.hall.config, this.hall.server
    plan = WorkerPlan(config, server, this.run, this.socket, directory / LOG)
    async with WorkerLink(this.socket, config.membership.wait) as link, WorkerProcess(plan):
        yield ServersTogether(server, link, config.link, config.reduce_every, note)


def publish_exporter(this: Member, page: str) -> None:
    """Write into the store where this server's exporter is, whose page has the address `page`; for Prometheus.

    An exporter on the loopback interface is reached there, whatever the server's address.
    """
    place = urlsplit(page).netloc
    with contextlib.closing(connect(this.hall.config.store)) as store:
        store.set(exporter_key(this.hall.config.name, this.hall.server), place)


def count_servers(record: RoundRecord, metrics: MetricsState) -> None:
    """Add to the metrics what a round's steps had to do with other servers."""
    for step in record.steps:
        if (servers := step.servers) is not None:
            for _ in range(servers.meetings):
                metrics.add_rendezvous(len(servers.present))
            costs = servers.sent_bytes, servers.reduce_seconds, servers.waited_seconds
            metrics.add_servers_step(len(servers.present), *costs)


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
        except CaughtUp as ahead:
            training.restore(unpack_state(ahead.state))
