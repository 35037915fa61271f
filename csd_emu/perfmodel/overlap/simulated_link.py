"""The link between the host and its drives, as the simulation of schedules sees it: now, and as it changes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from csd_emu.perfmodel.sharing import check_numbers
from firmware_agent.common.errors import ConfigurationError


@dataclass(frozen=True)
class SharedLink:
    """The host's side of the link and the drives' own, full duplex: every figure holds for each direction.

    Attributes:
        bytes_per_second: of the host's side; what is under way on it shares it in equal parts.
        latency_seconds: from the last byte put on to the first look at it, and of what answers it.
        slice_seconds: what every slice costs beside its bytes, at the side that puts it on: theta of algorithms 6.2
            (encoding, checksum, system calls). The link carries other drives' slices meanwhile.
        device_bytes_per_second: of one drive's own side.
        background_share: of the host's side, 0 to less than 1, that storage traffic takes.
        turn_bytes: drives are served one after the other, so many bytes at a time; 0 for equal parts all the time,
            which is what very short turns come to, but for drives that then never differ.
    """

    bytes_per_second: float
    latency_seconds: float
    slice_seconds: float = 0.0
    device_bytes_per_second: float = math.inf
    background_share: float = 0.0
    turn_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse what no link has."""
        check_numbers(
            "the link",
            {"bandwidth": self.bytes_per_second},
            {"latency": self.latency_seconds, "seconds per slice": self.slice_seconds},
        )
        if not self.device_bytes_per_second > 0:
            raise ConfigurationError("the link: a drive's own bandwidth must be positive")
        if self.turn_bytes < 0:
            raise ConfigurationError(f"the link: turns of {self.turn_bytes} bytes; give 0 for none")
        if not 0 <= self.background_share < 1:
            raise ConfigurationError(
                f"the link: background traffic takes a share of {self.background_share}; give 0 to less than 1"
            )

    @property
    def free_bytes_per_second(self) -> float:
        """What storage traffic leaves of the host's side."""
        return self.bytes_per_second * (1 - self.background_share)


@dataclass(frozen=True)
class OwnLink:
    """What one drive's own side adds to the link that all share, each way.

    Attributes:
        bytes_per_second: it carries no more.
        latency_seconds: beside the shared side's.
    """

    bytes_per_second: float = math.inf
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no drive has."""
        check_numbers("a drive's link", {}, {"latency": self.latency_seconds})
        if not self.bytes_per_second > 0:
            raise ConfigurationError("a drive's link: its bandwidth must be positive")


@dataclass(frozen=True)
class LinkTrace:
    """A link that changes at given moments and stays as it is between them.

    Attributes:
        starts: when each of `links` begins to hold, in seconds, rising, the first 0.
        links: one per start; the last one holds for ever.
    """

    starts: tuple[float, ...]
    links: tuple[SharedLink, ...]

    def __post_init__(self) -> None:
        """Refuse a trace that does not say what holds at every moment."""
        if not self.starts or len(self.starts) != len(self.links) or self.starts[0] != 0:
            raise ConfigurationError("a link's trace has one start per link, and the first is 0")
        rising = all(a < b < math.inf for a, b in zip(self.starts, self.starts[1:], strict=False))
        if not rising:
            raise ConfigurationError("a link's trace: its starts must rise and be finite")

    def at(self, seconds: float) -> SharedLink:
        """Return the link at that moment."""
        return self.links[bisect_right(self.starts, seconds) - 1]


def constant(link: SharedLink) -> LinkTrace:
    """Return the link that never changes."""
    return LinkTrace((0.0,), (link,))


def stepped(link: SharedLink, starts: Sequence[float], bytes_per_second: Sequence[float]) -> LinkTrace:
    """Return `link` with another bandwidth of the host's side from each start on.

    Raises:
        ConfigurationError: starts and bandwidths do not fit each other, or are no trace.
    """
    if len(starts) != len(bytes_per_second):
        raise ConfigurationError(f"{len(starts)} starts for {len(bytes_per_second)} bandwidths; give one for each")
    return LinkTrace(tuple(starts), tuple(replace(link, bytes_per_second=rate) for rate in bytes_per_second))
