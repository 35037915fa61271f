"""Protocol of a shaper, which stands between the drives of one array and their host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines.shaping.link_shape import Shape
from csd_emu.profiles import get_profile


class Shaper(Protocol):
    """A link of one array that can be shaped. All calls block, and may be made by several threads."""

    @property
    def dial_address(self) -> str:
        """Under which address drives find the host, at the host's own port."""

    @property
    def listen_address(self) -> str | None:
        """On which address the host has to listen for that; None for its own."""

    def command(self, agent: Sequence[str]) -> list[str]:
        """Return the command that starts an agent behind the link."""

    def open(self) -> None:
        """Make what has to be there before the host listens; what is there already stays as it is.

        Raises:
            EnvironmentUnfit: this machine does not allow it; nothing is left.
        """

    def connect(self, port: int) -> None:
        """Let drives through to the host, which listens on `port`; a link that does so already stays as it is.

        Raises:
            EnvironmentUnfit: this machine does not allow it.
        """

    def change(self, shape: Shape) -> None:
        """Give a link that is up another shape; what waits in it goes on under the new one.

        Raises:
            EnvironmentUnfit: it is not up any more, or cannot have this shape.
        """

    def check(self) -> None:
        """Return if the link is up.

        Raises:
            EnvironmentUnfit: it has gone, so that no drive reaches its host; the message says why.
        """

    def close(self) -> None:
        """Take the link down, whichever process brought it up; a link that is already down is a success."""


def link_shape(config: ArrayConfig) -> Shape:
    """Return the shape that an array's file asks for; what it leaves out comes from the host's profile."""
    link, host = config.link, get_profile(config.host.profile)
    bandwidth = host.link_bytes_per_second.value if link.bandwidth is None else link.bandwidth
    return Shape(bandwidth, host.link_latency_seconds.value if link.latency is None else link.latency)
