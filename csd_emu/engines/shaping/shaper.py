"""A shaped link: its parameters, those of the kernel's token bucket for it, and the protocol of what shapes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.sharing import check_numbers
from csd_emu.profiles import get_profile

# Of the virtual Ethernet: large frames spend less on headers and on the processor.
MTU_BYTES = 9000
# tbf never passes a packet that is larger than its bucket: a frame with its Ethernet header, twice.
_LEAST_BURST_BYTES = 2 * (MTU_BYTES + 14)
# After a rest so much passes at once. The kernel's timer is exact enough for less than its tick.
_BURST_SECONDS = 0.001
# TCP's windows on this machine are smaller in sum: nothing is ever dropped, the sender's credit bounds what waits.
QUEUE_BYTES = 64 << 20
MIN_BYTES_PER_SECOND = 1000.0


@dataclass(frozen=True)
class Shape:
    """A link that all drives of an array share.

    Attributes:
        bytes_per_second: each way.
        latency_seconds: one way, beside that of the machine itself.
    """

    bytes_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Check.

        Raises:
            ConfigurationError: a number makes no sense, or the link is slower than 1 kB/s.
        """
        name = f"bandwidth less {MIN_BYTES_PER_SECOND:.0f} B/s"
        rates = {"bandwidth": self.bytes_per_second, name: self.bytes_per_second - MIN_BYTES_PER_SECOND + 1}
        check_numbers("the shaped link", rates, {"latency": self.latency_seconds})


def burst_bytes(bytes_per_second: float) -> int:
    """Return what the kernel's token bucket lets through at once after a rest."""
    return max(_LEAST_BURST_BYTES, round(_BURST_SECONDS * bytes_per_second))


def bucket_arguments(bytes_per_second: float) -> list[str]:
    """Return the arguments of ``tc qdisc`` for a token bucket of this rate, Ethernet headers counted."""
    rate, burst = round(8 * bytes_per_second), burst_bytes(bytes_per_second)
    return ["tbf", "rate", f"{rate}bit", "burst", f"{burst}b", "limit", f"{QUEUE_BYTES}b"]


class Shaper(ABC):
    """A link of one array that can be shaped. All calls block, and may be made by several threads.

    Attributes:
        dial_address: under which drives find the host, at the host's own port.
        listen_address: on which the host has to listen for that; None for its own.
    """

    dial_address: str
    listen_address: str | None = None

    def command(self, agent: Sequence[str]) -> list[str]:
        """Return the command that starts an agent behind the link."""
        return list(agent)

    def open(self) -> None:
        """Make what has to be there before the host listens; what is there already stays as it is.

        Raises:
            EnvironmentUnfit: this machine does not allow it; nothing is left.
        """
        return

    def connect(self, port: int) -> None:
        """Let drives through to the host, which listens on `port`; a link that does so already stays as it is.

        Raises:
            EnvironmentUnfit: this machine does not allow it.
        """
        return

    @abstractmethod
    def change(self, shape: Shape) -> None:
        """Give a link that is up another shape; what waits in it goes on under the new one.

        Raises:
            EnvironmentUnfit: it is not up any more, or cannot have this shape.
        """

    @abstractmethod
    def check(self) -> None:
        """Return if the link is up.

        Raises:
            EnvironmentUnfit: it has gone, so that no drive reaches its host; the message says why.
        """

    @abstractmethod
    def close(self) -> None:
        """Take the link down, whichever process brought it up; a link that is already down is a success."""


def link_shape(config: ArrayConfig) -> Shape:
    """Return the shape that an array's file asks for; what it leaves out comes from the host's profile."""
    link, host = config.link, get_profile(config.host.profile)
    bandwidth = host.link_bytes_per_second.value if link.bandwidth is None else link.bandwidth
    return Shape(bandwidth, host.link_latency_seconds.value if link.latency is None else link.latency)
