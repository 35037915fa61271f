"""The link between the host and its drives, as the simulation of schedules sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from csd_emu.perfmodel.sharing import Link, check_numbers
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
            which is what very short turns come to, but for drives that then never differ. Only for drives whose own
            sides bound nothing.
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
        if self.turn_bytes < 0 or (self.turn_bytes and self.device_bytes_per_second < math.inf):
            raise ConfigurationError(
                f"the link: turns of {self.turn_bytes} bytes; give 0 for none, or some where no own side is narrow"
            )
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


def host_side(link: Link, drives: int, slice_seconds: float) -> SharedLink:
    """Return the host's side as all share it; where it is not shared, it is as wide as all drives have it together."""
    width = 1 if link.shared else drives
    return SharedLink(link.bytes_per_second * width, link.latency_seconds, slice_seconds)


def own_side(link: Link, bytes_per_second: float, latency_seconds: float) -> OwnLink:
    """Return a drive's own side; where the host's is not shared, the drive has no more of that than what is its own."""
    return OwnLink(bytes_per_second if link.shared else min(bytes_per_second, link.bytes_per_second), latency_seconds)
