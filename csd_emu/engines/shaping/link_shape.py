"""Parameters of a shaped link, and of the kernel's token bucket for it. Numbers in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass

from csd_emu.perfmodel.sharing import check_numbers

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
