"""Training with other servers: each has its own drives, and after each step their gradients are added up.

Every server runs the same loop over the drives of all servers: it deals out all records, and its own drives compute
theirs; what all drives returned is exchanged with the gradients, so that whoever decides on batches decides the same
everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from firmware_agent.common.slices import Array
from host.core.learning.judgement import Judgement

T = TypeVar("T")


class DevicePart(msgspec.Struct, frozen=True, array_like=True):
    """What one drive computed: so many records in so many device seconds, whether or not they count."""

    device: str
    records: int
    compute_seconds: float


class ServerPart(msgspec.Struct, frozen=True):
    """What one server says of its part in a step.

    Attributes:
        records: in its gradient.
        rated: records of which the learning rate is that of the step: those of its drives that were not late.
        loss: mean over the records in the gradient.
        array_seconds: how long its own drives and host took.
        counted: parts in its gradient.
        observed: all parts, those of late drives and probes too.
        joules: node -> what it drew in these seconds.
        idle_watts: node -> what it draws while it waits for other servers.
        missing: drives that were asked and returned nothing in time.
    """

    records: int
    rated: int
    loss: float
    array_seconds: float
    counted: list[DevicePart]
    observed: list[DevicePart]
    joules: dict[str, float]
    idle_watts: dict[str, float]
    missing: list[str]


@dataclass(frozen=True)
class AddedUp(Generic[T]):
    """What a step, or a window of local steps, came to over all servers.

    Attributes:
        means: tensor -> the mean over all records of all servers, or of their arrays after a window, in the tensor's
            dtype; empty if nobody computed anything.
        parts: server -> its part, in each step of a window, of those that were there, in the order of the servers file.
        link_seconds: modelled seconds that adding up takes.
        sent_bytes: that each server sends for that.
        meetings: how often servers had to meet anew in this step.
    """

    means: Mapping[str, Array]
    parts: Mapping[str, T]
    link_seconds: float
    sent_bytes: int
    meetings: int


ReducedStep = AddedUp[ServerPart]
Averaged = AddedUp[Sequence[ServerPart]]


class StateBehind(Exception):
    """Raised when another server is further: `state` is the training's there, and what was going on is void."""

    def __init__(self, server: str, state: bytes) -> None:
        """Take the other server's name and state."""
        super().__init__(f"server {server} is further")
        self.server, self.state = server, state


class PeerServers(Protocol):
    """The servers that train together, as one of them sees them. Any method may raise `StateBehind`."""

    server: str
    """This one."""
    reduce_every: int
    """After so many steps they add up: 1 sums every step's gradients, more take the mean of weights."""
    turn: int
    """How many turns were taken, by this server or those whose state it has taken over: part of a training's state."""

    async def begin(
        self, step: int, here: Collection[str], weights: bytes, give_state: Callable[[], bytes]
    ) -> list[str]:
        """Say which of one's own drives are here before a step, and return which of the others' are.

        Args:
            step: its number.
            here: one's own drives that are here.
            weights: a hash of the weights, which all servers that tell one must have alike; b"" to tell none.
            give_state: returns the training's state, for servers that are behind; it is called in a thread.

        Raises:
            DeviceLost: too few servers were there for too long.
        """

    async def reduce(self, step: int, means: Mapping[str, Array], part: ServerPart) -> ReducedStep:
        """Add up with all servers.

        Args:
            step: its number.
            means: tensor -> mean over the records of one's own drives; of a server without any, arrays of these shapes.
            part: what is said of them.

        Raises:
            DeviceLost: see `begin`.
        """

    async def average(self, step: int, arrays: Mapping[str, Array], parts: Sequence[ServerPart]) -> Averaged:
        """Take the mean with all servers, weighted with the records that each has computed.

        Args:
            step: number of the window's last one.
            arrays: this server's; all servers' have the same names, shapes and dtypes.
            parts: of this server in each step of the window.

        Raises:
            DeviceLost: see `begin`.
        """

    async def end_round(self, step: int, judged: Judgement) -> Judgement:
        """Return what the first server makes of a round that ends with a step: machines round differently.

        Raises:
            DeviceLost: see `begin`.
        """
