"""CPU time that a virtual machine's host keeps from it: wall time goes on while its processors stand still."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import psutil

T = TypeVar("T")
# A run from which more of the processor time that was wanted was stolen says more about others than about itself.
MOST_STOLEN = 0.1
# So many times as many runs as are wanted are made at most, with those that are made again.
MOST_PASSES = 2.5

_NOT_BUSY = ("idle", "iowait", "steal", "guest", "guest_nice")


class Ticks(NamedTuple):
    """Seconds of all processors together since the machine began: given to somebody, and kept from who wanted them."""

    busy: float
    stolen: float


def read_ticks() -> Ticks:
    """Return the machine's; where it is nobody's guest, or does not say so, nothing is stolen."""
    times = psutil.cpu_times()._asdict()
    # Guests' seconds are in user's.
    busy = sum(seconds for kind, seconds in times.items() if kind not in _NOT_BUSY)
    return Ticks(busy, times.get("steal", 0.0))


class StolenTime:
    """Watches from now on how much of the processor time that was wanted here was given to others."""

    def __init__(self, read: Callable[[], Ticks] = read_ticks) -> None:
        """Begin to watch."""
        self._read, self._begin = read, read()

    @property
    def share(self) -> float:
        """Stolen over wanted seconds until now; 0 if none were wanted."""
        now = self._read()
        stolen, busy = now.stolen - self._begin.stolen, now.busy - self._begin.busy
        wanted = stolen + busy
        return stolen / wanted if wanted > 0 else 0.0


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """A run, of several the one from which the least was stolen.

    Attributes:
        result: what it returned.
        stolen_share: of the processor time that was wanted meanwhile.
        runs: how many were made.
    """

    result: T
    stolen_share: float
    runs: int


async def undisturbed(
    jobs: Sequence[Callable[[], Awaitable[T]]],
    advance: Callable[[float], None] = lambda _: None,
    passes: float = MOST_PASSES,
    watch: Callable[[], StolenTime] = StolenTime,
) -> list[Attempt[T]]:
    """Run all jobs in their order, and those again from which much was stolen, after all others.

    What is run again goes by that alone, never by what came of it.

    Args:
        jobs: each may be run several times.
        advance: told the share of the jobs that are done with.
        passes: at most so many times as many runs are made as there are jobs.
        watch: begins to watch a run.
    """
    waiting, best = deque(range(len(jobs))), dict[int, Attempt[T]]()
    left = round(passes * len(jobs))
    while waiting and left:
        number, left = waiting.popleft(), left - 1
        stolen, before = watch(), best.get(number)
        seen = Attempt(await jobs[number](), stolen.share, 1)
        kept = seen if before is None or seen.stolen_share < before.stolen_share else before
        best[number] = replace(kept, runs=1 if before is None else before.runs + 1)
        if kept.stolen_share > MOST_STOLEN:
            waiting.append(number)
        advance(1 - len(waiting) / len(jobs))
    return [best[number] for number in range(len(jobs))]
