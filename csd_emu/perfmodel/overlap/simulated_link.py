"""The link between the host and its drives, as the simulation of schedules sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from csd_emu.perfmodel.sharing import Link, check_numbers
from firmware_agent.common.errors import ConfigurationError


@dataclass(frozen=True)
class SharedLink:
    """The host's side of the link, full duplex: every figure holds for each direction.

    Attributes:
        bytes_per_second: of the host's side; what is under way on it shares it in equal parts.
        latency_seconds: from the last byte put on to the first look at it, and of what answers it.
        slice_seconds: what every slice costs beside its bytes, at the side that puts it on: theta of algorithms 6.2
            (encoding, checksum, system calls). The link carries other drives' slices meanwhile.
    """

    bytes_per_second: float
    latency_seconds: float
    slice_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no link has."""
        check_numbers(
            "the link",
            {"bandwidth": self.bytes_per_second},
            {"latency": self.latency_seconds, "seconds per slice": self.slice_seconds},
        )


@dataclass(frozen=True)
class OwnLink:
    """What one drive's own side adds to the link that all share, each way.

    Attributes:
        bytes_per_second: it carries no more.
        latency_seconds: beside the shared side's.
        slice_seconds: what a slice costs beside its bytes and the shared side's.
    """

    bytes_per_second: float = math.inf
    latency_seconds: float = 0.0
    slice_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no drive has."""
        check_numbers("a drive's link", {}, {"latency": self.latency_seconds, "seconds per slice": self.slice_seconds})
        if not self.bytes_per_second > 0:
            raise ConfigurationError("a drive's link: its bandwidth must be positive")


def host_side(link: Link, drives: int, slice_seconds: float) -> SharedLink:
    """Return the host's side as all share it; where it is not shared, it is as wide as all drives have it together."""
    return SharedLink(link.bytes_per_second * (1 if link.shared else drives), link.latency_seconds, slice_seconds)


def own_side(link: Link, bytes_per_second: float, latency_seconds: float) -> OwnLink:
    """Return a drive's own side; where the host's is not shared, the drive has no more of that than what is its own."""
    return OwnLink(bytes_per_second if link.shared else min(bytes_per_second, link.bytes_per_second), latency_seconds)
