"""Queues before dies and channels: when each operation begins and ends, window after window, in whole nanoseconds.

First come, first served has a closed form: the k-th operation of a server ends at ``S_k + max over j <= k of
(ready_j - S_(j-1))``, where S is the cumulative service (Lindley, "The theory of queues with a single server", 1952).
Where the host goes first, no server idles while it has work either, so busy periods begin and end as before; only the
order within those that have operations of both is found step by step.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
# Columns of equal length, by their names.
Columns = dict[str, npt.NDArray[Any]]


def table(numbers: Sequence[str], flags: Sequence[str], rows: int = 0) -> Columns:
    """Return columns of zeros, int64, and of False."""
    return {name: np.zeros(rows, np.bool_ if name in flags else np.int64) for name in (*numbers, *flags)}


def take(columns: Columns, rows: npt.NDArray[Any] | slice) -> Columns:
    """Return some rows: by their places, a mask or a slice."""
    if not isinstance(rows, slice) and rows.dtype == np.bool_:
        rows = np.flatnonzero(rows)  # once for all columns
    return {name: column[rows] for name, column in columns.items()}


def join(first: Columns, second: Columns) -> Columns:
    """Return the rows of two tables, which have the same columns."""
    return {name: np.concatenate([column, second[name]]) for name, column in first.items()}


def operations_table(rows: int = 0) -> Columns:
    """Return a table of operations, each one access of a die or one transfer.

    It is of `pages` of a `command`, from the logical `page` on, as many dies apart as there are. `number` orders what is
    ready together; `ready` and `service` are nanoseconds.
    """
    names = "number", "ready", "service", "command", "page", "pages", "die"
    return table(names, ("writes", "engine"), rows)


class Stations:
    """Servers of one kind, each with a queue: the dies, or one direction of the channels.

    Attributes:
        free_ns: (servers,) when each has done what it began so far.
        waiting: the operations that had not begun when the last window ended.
    """

    def __init__(self, servers: int, host_first: bool) -> None:
        """Take how many there are, and whether the host's operations go before the engine's that have not begun."""
        self.free_ns = np.zeros(servers, np.int64)
        self.waiting = operations_table()
        self._host_first = host_first

    def serve(self, operations: Columns, until_ns: int) -> tuple[Columns, Integers]:
        """Take more operations, and begin all that begin before a window ends.

        What is ready before `until_ns` must be known: later calls bring what is ready then or later.

        Returns:
            (n,) operations that began, and (n,) nanoseconds when each ends.
        """
        operations = join(self.waiting, operations)
        server = operations["die"] % len(self.free_ns)
        order = np.lexsort((operations["number"], operations["ready"], server.astype(np.uint16)))
        operations, server = take(operations, order), server[order]
        ready = np.maximum(operations["ready"], self.free_ns[server])
        ends = first_come(ready, operations["service"], server)
        if self._host_first:
            _put_host_first(operations, server, ready, ends)
        began = ends - operations["service"] < until_ns
        self.waiting = take(operations, ~began)
        np.maximum.at(self.free_ns, server[began], ends[began])
        return take(operations, began), ends[began]


def first_come(ready: Integers, service: Integers, server: Integers | int = 0) -> Integers:
    """Return (n,) when each operation ends, first come, first served; they are sorted by server and readiness."""
    total = np.cumsum(service)
    slack = ready - (total - service)
    least = slack.min(initial=0)
    # With a lift, one running maximum serves all: no server's reaches into the next one's.
    lift = server * (slack.max(initial=0) - least + 1) - least
    ends: Integers = np.maximum.accumulate(slack + lift) - lift + total
    return ends


def _put_host_first(operations: Columns, server: Integers, ready: Integers, ends: Integers) -> None:
    """Correct the ends in busy periods that have operations of host and engine."""
    idle = np.diff(server, prepend=-1) != 0
    idle[1:] |= ready[1:] > ends[:-1]
    bounds = [*np.flatnonzero(idle).tolist(), len(ends)]
    share = np.add.reduceat(operations["engine"], bounds[:-1], dtype=np.int64) if len(ends) else ends
    for period in np.flatnonzero((share > 0) & (share < np.diff(bounds))).tolist():
        part = slice(bounds[period], bounds[period + 1])
        ends[part] = _host_first_ends(take(operations, part), int(ready[part.start]))


def _host_first_ends(operations: Columns, now: int) -> list[int]:
    """Return when each operation of one busy period ends, which begins `now`, if the host goes first."""
    ready, service, engine = (operations[name].tolist() for name in ("ready", "service", "engine"))
    ends, came, waiting = [0] * len(ready), 0, list[tuple[bool, int]]()
    for _ in ready:
        while came < len(ready) and ready[came] <= now:
            heapq.heappush(waiting, (engine[came], came))
            came += 1
        _, place = heapq.heappop(waiting)
        now = ends[place] = now + service[place]
    return ends
