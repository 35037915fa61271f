"""Commands of one read or write of a drive's engine, as they enter the drive beside those of its host."""

from __future__ import annotations

import numpy as np

from csd_emu.perfmodel.flash.flash_queues import Columns, take
from csd_emu.perfmodel.storage.read_throttle import ReadThrottle
from csd_emu.profiles.flash_geometry import SECOND

COMMAND_BYTES = 131_072
"""Of the engine's own commands, at most: what Linux reads ahead by default."""
WINDOW_NS = 1_000_000
"""Of a throttled engine, at most; no more than two of them let in is in the drive, so that nothing piles up."""


class EngineCommands:
    """The commands of one read or write.

    Attributes:
        left: how many have not ended.
    """

    def __init__(self, commands: Columns, page_bytes: int) -> None:
        """Take the commands in the order of their arrival."""
        self.left, self._waiting = len(commands["page"]), commands
        self._page_bytes, self._credit = page_bytes, 0.0

    @property
    def last_ns(self) -> int:
        """When the last of those that wait arrives; 0 of none."""
        return int(self._waiting["arrival_ns"].max(initial=0))

    def enter(self, now_ns: int, until_ns: int, throttle: ReadThrottle | None) -> tuple[Columns, bool]:
        """Return those that enter in a window, and whether the throttle has others wait."""
        arrival = self._waiting["arrival_ns"]
        due = entering = int(np.searchsorted(arrival, until_ns))
        if throttle is not None:
            rate = throttle.bytes_per_second
            self._credit += rate * (until_ns - now_ns) / SECOND
            sizes = np.cumsum(self._waiting["pages"][:due]) * self._page_bytes
            flying = self.left - len(arrival)
            most = max(2, int(rate * 2 * WINDOW_NS / SECOND / COMMAND_BYTES)) - flying
            entering = max(0, min(int(np.searchsorted(sizes, self._credit, side="right")), most))
            spent = int(sizes[entering - 1]) if entering else 0
            self._credit = min(self._credit - spent, max(COMMAND_BYTES, self._page_bytes))
            spaced = (sizes[:entering] - sizes[:1]) * SECOND / max(rate, 1.0)
            spaced = now_ns + np.minimum(spaced, until_ns - now_ns - 1).astype(np.int64)
            arrival[:entering] = np.maximum(arrival[:entering], spaced)
        commands, self._waiting = take(self._waiting, slice(entering)), take(self._waiting, slice(entering, None))
        return commands, entering < due
