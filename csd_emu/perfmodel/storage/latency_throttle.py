"""Throttle that keeps the 99th percentile of the host's latency of each device second under a limit.

It knows what a controller knows: latencies of commands that have ended, and the limit. A second keeps it if at most one
in a hundred of its commands is late. So there are two rules:

* The rate grows with each command that was in time and shrinks with each that was late, so that both balance where the
  share `TARGET` is late (stochastic approximation: Robbins and Monro, Annals of Mathematical Statistics, 1951). It
  moves by commands, not by time: while the host is silent nothing is learned, and the rate stays what the host bore
  last. While training is parked it stays, too.
* Late commands of a second count against those that it may have, given the commands that ended and a careful forecast
  of those to come. When `RESERVE` of them are used up, or many of an interval were late, training is parked: for a
  second at most, for if that does not help, the host breaks the limit by itself.

Additions, multiplications and divisions are all it takes: it does the same on any machine.
"""

from __future__ import annotations

from csd_emu.perfmodel.flash.flash_parameters import SECOND
from csd_emu.perfmodel.flash.flash_queues import Integers
from firmware_agent.common.errors import ConfigurationError

INTERVAL_NS = 10_000_000
ALLOWED = 0.01
"""Share of a second's commands that may be late."""
TARGET = 0.003
SPEED = 0.7
"""By how much the logarithm of the rate grows in a second in which no command is late, but for rounding."""
RESERVE = 0.4
DROP = 8.0
"""By how much an interval lowers the rate at most."""
BURST = 0.1
"""Share of an interval's commands: if more are late, training is parked."""
FIRST, LEAST = 1 / 8, 1 / 1024
"""Of the highest rate: the first one, and the lowest that is kept while training is parked."""
_FEWEST = 100.0
"""Commands a second of a host that asks for fewer: their share of the rate's growth is as small."""


class LatencyThrottle:
    """A `ReadThrottle` that keeps a limit.

    Attributes:
        bytes_per_second: from 0 to `most`; see `ReadThrottle`.
        interval_ns: the same.
        most: bytes a second that the engine reads at most.
    """

    def __init__(self, limit_seconds: float, most: float) -> None:
        """Begin carefully, at `FIRST` of the highest rate.

        Raises:
            ConfigurationError: the limit or the rate is not positive.
        """
        if not (limit_seconds > 0 and 0 < most < float("inf")):
            raise ConfigurationError(
                f"protect: a limit of {limit_seconds:g} s for an engine that reads {most:g} bytes a second; both must "
                "be positive and finite: change p99, or the profile's rate"
            )
        self.most, self.interval_ns, self._limit_ns = most, INTERVAL_NS, limit_seconds * SECOND
        self.bytes_per_second = self._rate = FIRST * most
        # Commands that ended in this second and that were late, a usual second's, and a second's at today's pace.
        self._second = self._ended = self._late = self._usual = self._pace = 0.0
        # Intervals for which training has been parked, or would have been.
        self._parked = 0

    def state(self) -> list[float]:
        """Return all that changes, for `restore`."""
        counts = [self._second, self._ended, self._late, self._usual, self._pace, self._parked]
        return [self.bytes_per_second, self._rate, *counts]

    def restore(self, state: list[float]) -> None:
        """Go on from a state."""
        self.bytes_per_second, self._rate, *counts = state
        self._second, self._ended, self._late, self._usual, self._pace, parked = counts
        self._parked = int(parked)

    def observe(self, now_ns: int, latency_ns: Integers) -> None:
        """Take the latencies, (n,) nanoseconds, of the host's commands that ended in the interval up to `now_ns`."""
        second, passed = divmod(now_ns - 1, SECOND)
        if second != self._second:
            if self._ended:
                self._usual = (self._usual + self._ended) / 2 if self._usual else self._ended
            self._second, self._ended, self._late = float(second), 0.0, 0.0
        ended, late = len(latency_ns), int((latency_ns > self._limit_ns).sum())
        self._ended, self._late = self._ended + ended, self._late + late
        self._pace += (ended * SECOND / self.interval_ns - self._pace) / 4
        gain = SPEED / max(self._usual, self._ended, _FEWEST)
        # What ends while training is parked says nothing of the rate.
        if self.bytes_per_second:
            rate = self._rate * (1 + gain * ended) / min(1 + gain * late / TARGET, DROP)
            self._rate = min(max(rate, LEAST * self.most), self.most)
        coming = min(self._pace, self._usual) * (SECOND - 1 - passed) / SECOND
        spent = self._late > RESERVE * ALLOWED * (self._ended + coming)
        self._parked = self._parked + 1 if spent or late > BURST * ended else 0
        # Where parking helps nothing for a second the host breaks the limit by itself; without a host there is none.
        parked = 0 < self._parked <= SECOND // self.interval_ns
        free = self.most if not (self._usual or self._ended) else self._rate
        self.bytes_per_second = 0.0 if parked else free
