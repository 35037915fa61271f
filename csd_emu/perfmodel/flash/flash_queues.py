"""Queues before dies and channels: when each operation begins and ends, window after window, in whole nanoseconds.

First come, first served has a closed form: the k-th operation of a server ends at ``S_k + max over j <= k of
(ready_j - S_(j-1))``, where S is the cumulative service (Lindley, "The theory of queues with a single server", 1952).
Where the host goes first, no server idles while it has work either, so busy periods begin and end as before; only the
order within those that have operations of both is found step by step.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common.errors import DataError

Integers = npt.NDArray[np.int64]
# Columns of equal length, by their names.
Columns = dict[str, npt.NDArray[Any]]
# Nanoseconds, of one window's slack: with the lifts of 2^15 servers, it stays within 64 bits.
_WIDEST = 2**46


def take(columns: Columns, rows: Integers | slice) -> Columns:
    """Return some rows, by their places."""
    return {name: column[rows] for name, column in columns.items()}


def join(first: Columns, *others: Columns) -> Columns:
    """Return the rows of tables, with the columns of the first."""
    return {name: np.concatenate([column, *(each[name] for each in others)]) for name, column in first.items()}


def spread(counts: Integers) -> tuple[Integers, Integers]:
    """Return, for each of ``sum(counts)`` parts, which whole it is of, and its place in it."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def check_like(state: Columns, like: Columns) -> None:
    """Return if a state has the arrays of another one, in their shapes and dtypes.

    Raises:
        DataError: it has not.
    """
    for name, array in like.items():
        found = state.get(name)
        if found is None or found.shape != array.shape or found.dtype != array.dtype:
            raise DataError(f"state of a drive: {name!r} is not there, or of another drive; begin anew")


class Stations:
    """Servers of one kind, each with a queue: the dies, or one direction of the channels.

    Attributes:
        free_ns: (servers,) when each has done what it began so far.
    """

    def __init__(self, servers: int, host_first: bool) -> None:
        """Take how many there are, and whether the host's operations go before the engine's that have not begun."""
        self.free_ns = np.zeros(servers, np.int64)
        self._host_first = host_first

    def serve(self, operations: Columns, rows: Integers, until_ns: int) -> Integers:
        """Begin all operations that begin before a window ends.

        Args:
            operations: with the columns ``ready`` and ``service``, in nanoseconds, ``die`` and ``engine``; what is
                ready at the same time is served in the order of the rows. ``ready`` of those that begin becomes when
                they end.
            rows: those that wait here: all that are ready before `until_ns`, and any others.
            until_ns: device time.

        Returns:
            The rows that began.
        """
        server = operations["die"][rows] % len(self.free_ns)
        order = np.lexsort((operations["ready"][rows], server.astype(np.uint16)))
        rows, server = rows[order], server[order]
        service = operations["service"][rows]
        ready = np.maximum(operations["ready"][rows], self.free_ns[server])
        ends = first_come(ready, service, server)
        if self._host_first:
            _put_host_first((ready, service, operations["engine"][rows]), server, ends)
        began = np.flatnonzero(ends - service < until_ns)
        rows, ends = rows[began], ends[began]
        np.maximum.at(self.free_ns, server[began], ends)
        operations["ready"][rows] = ends
        return rows


def first_come(ready: Integers, service: Integers, server: Integers | int = 0) -> Integers:
    """Return (n,) when each operation ends, first come, first served; they are sorted by server and readiness."""
    total = np.cumsum(service)
    slack = ready - (total - service)
    least, most = (slack.min(), slack.max()) if len(slack) else (0, 0)
    # With a lift, one running maximum serves all: no server's reaches into the next one's.
    if most - least >= _WIDEST:
        # Such lifts could overflow; those of the ranks cannot.
        values, ranks = np.unique(slack, return_inverse=True)
        lift = server * len(values)
        return np.asarray(values[np.maximum.accumulate(ranks + lift) - lift] + total)
    lift = server * (most - least + 1) - least
    ends: Integers = np.maximum.accumulate(slack + lift) - lift + total
    return ends


def _put_host_first(queue: tuple[npt.NDArray[Any], ...], server: Integers, ends: Integers) -> None:
    """Correct the ends in busy periods that have operations of both; `queue` is when each is ready, its service, whose.

    What was ready before its server was free counts as ready then: the order of arrival is the order of the rows.
    """
    ready, _, engine = queue
    idle = np.diff(server, prepend=-1) != 0
    idle[1:] |= ready[1:] > ends[:-1]
    bounds = [*np.flatnonzero(idle).tolist(), len(ends)]
    share = np.add.reduceat(engine, bounds[:-1], dtype=np.int64) if len(ends) else ends
    for period in np.flatnonzero((share > 0) & (share < np.diff(bounds))).tolist():
        part = slice(bounds[period], bounds[period + 1])
        ends[part] = _host_first_ends(*(column[part].tolist() for column in queue))


def _host_first_ends(ready: list[int], service: list[int], engine: list[bool]) -> list[int]:
    """Return when each operation of one busy period ends, if the host goes first."""
    ends, now, came, waiting = [0] * len(ready), ready[0], 0, list[tuple[bool, int]]()
    for _ in ready:
        while came < len(ready) and ready[came] <= now:
            heapq.heappush(waiting, (engine[came], came))
            came += 1
        _, place = heapq.heappop(waiting)
        now = ends[place] = now + service[place]
    return ends
