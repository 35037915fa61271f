"""Throttle that keeps the 99th percentile of the host's latency of each device second under a limit.

It knows what a controller knows: latencies of commands that have ended, and the limit. A second keeps it if at most one
in a hundred of its commands is late. So, after each interval:

* Of the late commands that the second may have, those that it had are gone, and those that the host causes by itself
  will go: their share is known from when training was parked. What is left is training's, less a reserve for chance:
  late commands come in crowds, of a size that is measured.
* The rate at which training makes a share `TARGET` of the commands late is learned: it grows with each command that was
  in time and shrinks with each that was late (stochastic approximation: Robbins and Monro, Annals of Mathematical
  Statistics, 1951). It is the most; where less is left, the share is taken to grow with the square of the rate.
* While the host is silent the next command must find little before it. The rate of such times is another one: it
  doubles, or shrinks with the share of late commands among those that end first.

Additions, multiplications, divisions and square roots are all it takes: it does the same on any machine.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from csd_emu.perfmodel.flash.flash_queues import Integers
from csd_emu.profiles.flash_geometry import SECOND
from firmware_agent.common.errors import ConfigurationError

INTERVAL_NS = 10_000_000
ALLOWED = 0.01
"""Share of a second's commands that may be late."""
TARGET = 0.004
SPEED = 0.7
"""By how much the logarithm of the rate grows in a second in which no command is late, but for rounding."""
FASTER = 3.0
"""Times `SPEED` that the rate grows faster until the first command is late."""
DEVIATIONS = 2.0
"""Standard deviations of the late commands to come that are kept in reserve."""
CERTAIN = 0.7
"""Share of a second's commands to come that is counted on: a host may fall silent."""
DROP = 8.0
"""By how much an interval lowers a rate at most."""
FIRST, LEAST = 1 / 8, 1 / 1024
"""Of the highest rate: the first one, and the lowest."""
LISTENS, SILENT = 10, 10
"""Intervals with commands before training begins, and without any after which the host is silent."""
_FEWEST = 100.0
"""Commands a second of a host that asks for fewer: their share of the rate's growth is as small."""
_CROWDS, _ALONE = 200, 100
"""Intervals that the size of crowds, and the share of late commands without training, are means of."""
_FEW = 0.02
"""Late commands of an interval: where there are fewer, they come one by one."""
_LONG, _AGAIN = 100, 1000
"""Intervals for which training is parked at most where that does not help, and after which it is tried again."""


@dataclass
class _Memory:
    """What the throttle remembers.

    Attributes:
        rate, silent_rate: learned; of times with commands, and without any.
        allowed: the rate of the next interval, should a command arrive.
        rising: 1 until a command is late beside training, then 0.
        woken: whether the silence has ended in this interval.
        second, ended, late: number of this second, its commands that ended, and that were late.
        usual, pace: commands that end in a second, by whole seconds and by the last intervals.
        alone_ended, alone_late: commands that ended while training was parked.
        crowd, crowd_squares: mean of the late commands of an interval, and of their square.
        listened, parked, silence: intervals with commands at all, and the last ones without training, or commands.
    """

    rate: float
    silent_rate: float
    allowed: float = 0.0
    rising: float = 1.0
    woken: float = 0.0
    second: float = 0.0
    ended: float = 0.0
    late: float = 0.0
    usual: float = 0.0
    pace: float = 0.0
    alone_ended: float = 0.0
    alone_late: float = 0.0
    crowd: float = 1.0
    crowd_squares: float = 16.0
    listened: float = 0.0
    parked: float = 0.0
    silence: float = 0.0


class LatencyThrottle:
    """A `ReadThrottle` that keeps a limit.

    Attributes:
        bytes_per_second: from 0 to `most`; see `ReadThrottle`.
        interval_ns, silent: the same.
        most: bytes a second that the engine reads at most.
    """

    def __init__(self, limit_seconds: float, most: float) -> None:
        """Begin by listening.

        Raises:
            ConfigurationError: the limit or the rate is not positive.
        """
        if not (limit_seconds > 0 and 0 < most < float("inf")):
            raise ConfigurationError(
                f"protect: a limit of {limit_seconds:g} s for an engine that reads {most:g} bytes a second; both must "
                "be positive and finite: change p99, or the profile's rate"
            )
        self.most, self.interval_ns, self._limit_ns = most, INTERVAL_NS, limit_seconds * SECOND
        self.bytes_per_second, self.silent, self._memory = FIRST * most, False, _Memory(FIRST * most, most)

    def state(self) -> list[float]:
        """Return all that changes, for `restore`."""
        return [self.bytes_per_second, float(self.silent), *astuple(self._memory)]

    def restore(self, state: list[float]) -> None:
        """Go on from a state."""
        self.bytes_per_second, silent, *memory = state
        self.silent, self._memory = bool(silent), _Memory(*memory)

    def wake(self) -> None:
        """Take that the silent host has a command again."""
        self.silent, self._memory.woken, self.bytes_per_second = False, 1.0, self._memory.allowed

    def observe(self, now_ns: int, latency_ns: Integers) -> None:
        """Take the latencies, (n,) nanoseconds, of the host's commands that ended in the interval up to `now_ns`."""
        own, ended, late = self._memory, len(latency_ns), int((latency_ns > self._limit_ns).sum())
        second, passed = divmod(now_ns - 1, SECOND)
        if second != own.second:
            if own.ended:
                own.usual = (own.usual + own.ended) / 2 if own.usual else own.ended
            own.second, own.ended, own.late = float(second), 0.0, 0.0
        own.ended, own.late = own.ended + ended, own.late + late
        own.pace += (ended * SECOND / self.interval_ns - own.pace) / 4
        own.crowd += (late - own.crowd) / _CROWDS
        own.crowd_squares += (late * late - own.crowd_squares) / _CROWDS
        self._learn(ended, late)
        own.listened, own.silence = own.listened + (ended > 0), 0.0 if ended else own.silence + 1
        self.silent = own.listened > 0 and own.silence >= SILENT
        own.allowed = self._allow((SECOND - 1 - passed) / SECOND) if own.listened else self.most
        own.parked = 0.0 if own.allowed else own.parked + 1
        if own.parked > _AGAIN and own.parked % _AGAIN == 1:
            own.alone_ended = own.alone_late = 0.0
        elif own.parked % _AGAIN > _LONG and self._alone > ALLOWED:
            # The host breaks the limit by itself.
            own.allowed = own.rate
        self.bytes_per_second = own.silent_rate if self.silent else own.allowed

    def _learn(self, ended: int, late: int) -> None:
        """Move the rates, or what is late without training, by what an interval has shown."""
        own, least = self._memory, LEAST * self.most
        if own.woken and ended:
            own.silent_rate *= 2 / min(1 + late / ended / TARGET, DROP)
        elif self.bytes_per_second and not own.woken:
            own.rising *= not late
            gain, used = SPEED / max(own.usual, own.pace, _FEWEST), (self.bytes_per_second / own.rate) ** 2
            gain *= 1 + FASTER * own.rising
            change = 1 + gain * (late - self._alone * ended) / TARGET
            own.rate *= (1 + gain * used * ended) / min(max(change, 1 / DROP), DROP)
        elif own.parked > 2:
            own.alone_ended += ended - own.alone_ended / _ALONE
            own.alone_late += late - own.alone_late / _ALONE
        own.woken = 0.0
        own.rate, own.silent_rate = (
            min(max(own.rate, least), 4 * self.most),
            min(max(own.silent_rate, least), self.most),
        )

    @property
    def _alone(self) -> float:
        """Share of the commands that is late without training, as far as it is known."""
        return self._memory.alone_late / max(self._memory.alone_ended, 1.0)

    def _allow(self, rest: float) -> float:
        """Return the rate for the next interval; `rest` is the share of the second that is left."""
        own = self._memory
        coming = min(own.pace, own.usual or own.pace) * rest
        left = ALLOWED * (own.ended + CERTAIN * coming) - own.late
        if left <= 0 or own.listened < LISTENS:
            return 0.0
        crowd = (own.crowd_squares + _FEW) / (own.crowd + _FEW) - own.crowd
        # Of the late commands to come, the mean that leaves so many deviations above it.
        reserve = DEVIATIONS * max(1.0, crowd) ** 0.5
        mean = (((reserve**2 + 4 * left) ** 0.5 - reserve) / 2) ** 2
        share = (mean - self._alone * CERTAIN * coming) / max(coming, own.pace / 20, 1.0)
        rate = own.rate * min(max(share, 0.0) / TARGET, 1.0) ** 0.5
        return min(rate, self.most) if rate >= LEAST * self.most / 2 else 0.0
