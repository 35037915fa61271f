"""A run's part in several servers: it joins them before anything starts, and reaches them by turns that all take.

It leaves when its training is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
import numpy as np

from csd_emu.config.servers_file import ServerLink
from csd_emu.perfmodel.allreduce import Fabric, ring
from firmware_agent.common.errors import DeviceLost
from firmware_agent.common.slices import Array
from host.config.job_file import JobConfig
from host.config.server_group import ServerGroup
from host.core.learning.judgement import Judgement
from host.core.states.peer_servers import Averaged, ReducedStep, ServerPart, StateBehind
from host.core.states.training_state import hash_weights, pack_state, unpack_state
from host.training.multi_server.membership import Claim, code_sha256, exporter_key, member
from host.training.multi_server.state_sync import Position, Stage, diverged_servers
from host.training.multi_server.store.store_client import connect
from host.training.multi_server.worker.worker_frames import DOUBLE, SINGLE, join_sums
from host.training.multi_server.worker.worker_link import TurnOutcome, WorkerLink, no_sums
from host.training.multi_server.worker.worker_process import WorkerPlan, WorkerProcess, own_address
from host.training.training_protocol import Training

T = TypeVar("T")


class ServersTogether:
    """A `host.core.states.peer_servers.PeerServers`."""

    def __init__(
        self,
        server: str,
        turns: WorkerLink,
        link: ServerLink,
        reduce_every: int = 1,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Begin.

        Args:
            server: this one.
            turns: reaches the others.
            link: of each server to the others, for modelled seconds.
            reduce_every: after so many steps they add up.
            note: called with what the run's records should say.
        """
        self.server, self.reduce_every, self._turns, self._note = server, reduce_every, turns, note
        self._fabric = Fabric(link.bandwidth, link.latency)
        self._meetings = 0
        self.turn = 0

    async def begin(
        self, step: int, here: Collection[str], weights: bytes, give_state: Callable[[], bytes]
    ) -> list[str]:
        """Return which devices the others have (see `PeerServers.begin`)."""
        meta = msgspec.msgpack.encode((sorted(here), weights))
        own, self._meetings = True, 0
        while True:
            # Whoever has other weights than most stands behind these, and so takes over theirs.
            position = Position(step, self.turn if own else 0, Stage.BEGIN)
            outcome = await self._turns.turn(position, meta, no_sums(), give_state)
            self.turn += 1
            self._meetings += outcome.sent_again
            said = {
                server: msgspec.msgpack.decode(each, type=tuple[list[str], bytes])
                for server, each in outcome.metas.items()
            }
            different = diverged_servers({server: digest for server, (_, digest) in said.items()})
            if not different:
                return [name for server, (names, _) in said.items() if server != self.server for name in names]
            own = self.server not in different
            self._note(_told(step, different, [server for server in said if server not in different]))

    async def reduce(self, step: int, means: Mapping[str, Array], part: ServerPart) -> ReducedStep:
        """Add up gradients (see `PeerServers.reduce`)."""
        outcome, parts, cost = await self._add_up(step, means, part.records, part, ServerPart)
        return ReducedStep(_means(means, outcome, sum(part.records for part in parts.values())), parts, *cost)

    async def average(self, step: int, arrays: Mapping[str, Array], parts: Sequence[ServerPart]) -> Averaged:
        """Take the mean of arrays (see `PeerServers.average`)."""
        outcome, everyone, cost = await self._add_up(
            step, arrays, sum(part.records for part in parts), parts, list[ServerPart]
        )
        records = sum(part.records for each in everyone.values() for part in each)
        return Averaged(_means(arrays, outcome, records), everyone, *cost)

    async def _add_up(
        self, step: int, arrays: Mapping[str, Array], records: int, own: object, kind: type[T]
    ) -> tuple[TurnOutcome, dict[str, T], tuple[float, int, int]]:
        """Add up arrays, means over so many `records`, with what each server says, a `kind`.

        Returns:
            the sums, server -> what it said, and seconds, bytes and meetings as `ReducedStep` has them.
        """
        sums = join_sums([_scaled(array, records) for array in arrays.values()])
        outcome = await self._turns.turn(
            Position(step, self.turn, Stage.REDUCE), msgspec.msgpack.encode(own), sums, _no_state
        )
        self.turn += 1
        size_bytes = outcome.singles.nbytes + outcome.doubles.nbytes
        cost = ring(size_bytes, [len(outcome.metas)], self._fabric)
        said = {server: msgspec.msgpack.decode(meta, type=kind) for server, meta in outcome.metas.items()}
        sent_bytes = round(cost.link_bytes / len(said))
        return outcome, said, (cost.seconds, sent_bytes, self._meetings + outcome.sent_again)

    async def end_round(self, step: int, judged: Judgement) -> Judgement:
        """Return the first server's judgement (see `PeerServers.end_round`)."""
        turn = Position(step + 1, self.turn, Stage.ROUND), msgspec.msgpack.encode(judged), no_sums()
        outcome = await self._turns.turn(*turn, _no_state)
        self.turn += 1
        return msgspec.msgpack.decode(next(iter(outcome.metas.values())), type=Judgement)


def _told(step: int, different: Sequence[str], others: Sequence[str]) -> str:
    return (
        f"before step {step} the weights of {', '.join(different)} were not those of {', '.join(others)}, which take "
        "their place: a memory errs, or processors round differently (see csd-emu docs servers)"
    )


def _scaled(mean: Array, records: int) -> Array:
    """Return the sum whose mean over so many records this is; whole numbers as float64."""
    scaled = mean.astype(DOUBLE) * records
    return scaled.astype(SINGLE) if mean.dtype == SINGLE else scaled


def _means(shapes: Mapping[str, Array], outcome: TurnOutcome, records: int) -> dict[str, Array]:
    """Return the sums as means over so many records, in the dtypes and shapes of `shapes`; nothing for no records."""
    if not records:
        return {}
    means, edges = {}, {SINGLE: 0, DOUBLE: 0}
    for name, like in shapes.items():
        kind = SINGLE if like.dtype == SINGLE else DOUBLE
        start, edges[kind] = edges[kind], edges[kind] + like.size
        vector = outcome.singles if kind == SINGLE else outcome.doubles
        mean = vector[start : edges[kind]].astype(DOUBLE) / records
        rounded = mean if np.issubdtype(like.dtype, np.floating) else np.rint(mean)
        means[name] = rounded.astype(like.dtype).reshape(like.shape)
    return means


def _no_state() -> bytes:
    raise RuntimeError("a training's state is handed over between two steps alone")


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
