"""One drive's flash: commands of host and engine in, their ends out, window after window of device time.

A read takes the controller's time, its dies' read, its channels' way out and, for the host, the link; a write the link,
the controller, its channels' way in and its dies' program. Pages are mapped when they reach the die, in that order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.flash.flash_parameters import SECOND, FlashParameters
from csd_emu.perfmodel.flash.flash_queues import (
    Columns,
    Integers,
    Stations,
    first_come,
    join,
    operations_table,
    table,
    take,
)
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from firmware_agent.common.errors import ConfigurationError

FAIR, HOST_FIRST, ENGINE_LIMIT = POLICIES = ("fair", "host_first", "engine_limit")
BURST_BYTES = 131_072
"""Of the engine's commands beyond its limit, at once."""
FOREVER = 2**62
"""Nanoseconds, later than anything."""


def commands_table(rows: int = 0) -> Columns:
    """Return a table of commands.

    What a command says: `arrival_ns`, the first logical `page` and how many `pages`, whether it `writes`, and whether it
    is the `engine`'s. What the drive adds: `number`, counted from the drive's first; `finish_ns`; how many operations
    are `left`; whether it `failed`: a write for which there was no room.
    """
    names = "arrival_ns", "page", "pages", "number", "finish_ns", "left"
    return table(names, ("writes", "engine", "failed"), rows)


class FlashDrive:
    """The flash of one drive, with all that it has in progress.

    Attributes:
        flash: geometry and times.
        mapping: where its pages lie, and how many were copied.
        until_ns: where the last window ended.
        busy_ns: (dies,) how long each die worked in the last window.
    """

    def __init__(
        self,
        flash: FlashParameters,
        policy: str = FAIR,
        engine_bytes_per_second: int = 0,
        mapping: PageMapping | None = None,
    ) -> None:
        """Make a drive of which every page was written once, unless it has another `mapping`.

        Args:
            flash: geometry and times.
            policy: ``fair``: one queue; ``host_first``: of what waits at a die or channel, the host's goes first;
                ``engine_limit``: one queue, which the engine's commands enter at a limited rate.
            engine_bytes_per_second: that rate.
            mapping: where its pages lie.

        Raises:
            ConfigurationError: there is no such policy, or a rate without ``engine_limit``, or the other way round.
        """
        if policy not in POLICIES or (policy == ENGINE_LIMIT) != (engine_bytes_per_second > 0):
            raise ConfigurationError(
                f"flash: policy {policy!r} with engine_bytes_per_second of {engine_bytes_per_second!r}; choose one of "
                f"{', '.join(POLICIES)}; {ENGINE_LIMIT} needs a positive rate, and no other policy takes one"
            )
        self.flash, self.mapping = flash, mapping or PageMapping(flash)
        self.until_ns, self.busy_ns = 0, np.zeros(flash.dies, np.int64)
        self._limit = engine_bytes_per_second
        servers = flash.dies, flash.channels, flash.channels
        self._dies, self._into, self._out_of = (Stations(count, policy == HOST_FIRST) for count in servers)
        self._unmapped, self._open = operations_table(), commands_table()
        self._commands = self._operations = self._bucket_ns = 0

    def serve(self, commands: Columns, until_ns: int = FOREVER) -> Columns:
        """Take the commands of the window that ends before `until_ns`, and return those that ended or will for certain.

        Windows of any sizes give the same ends; without an end, all commands end.

        Args:
            commands: a `commands_table`, in the order of their arrival.
            until_ns: device time.

        Returns:
            The commands that ended, complete, in the order of their arrival. What the pages of one that failed held
            before is still there; those of its pages that found room are written.

        Raises:
            ConfigurationError: the commands are not of this window or namespace, or are not sorted.
        """
        self._check(commands, until_ns)
        spill = np.maximum(self._dies.free_ns - self.until_ns, 0)
        operations = self._admit(commands)
        writes = operations["writes"]
        mapped = self._map(*self._into.serve(take(operations, writes), until_ns), until_ns)
        accesses, ends = self._dies.serve(join(take(operations, ~writes), mapped), until_ns)
        self.until_ns, self.busy_ns = until_ns, spill - np.maximum(self._dies.free_ns - until_ns, 0)
        np.add.at(self.busy_ns, accesses["die"], accesses["service"])
        writes = accesses["writes"]
        self._end(take(accesses, writes), ends[writes])
        out = take(accesses, ~writes)
        out["ready"], out["service"] = ends[~writes], out["pages"] * self.flash.transfer_ns
        self._end(*self._out_of.serve(out, until_ns))
        ended = self._open["left"] == 0
        done, self._open = take(self._open, ended), take(self._open, ~ended)
        return done

    def _check(self, commands: Columns, until_ns: int) -> None:
        """Return if the commands are of this window and namespace.

        Raises:
            ConfigurationError: they are not.
        """
        arrival, pages, most = commands["arrival_ns"], commands["pages"], self.mapping.namespace_pages
        if np.any(np.diff(arrival, prepend=self.until_ns) < 0) or np.any(arrival >= until_ns):
            raise ConfigurationError(
                f"flash: commands must arrive in their order, from {self.until_ns} ns to {until_ns} ns; sort them, or "
                "give a later window"
            )
        if np.any(commands["page"] < 0) or np.any(pages < 1) or np.any(commands["page"] + pages > most):
            raise ConfigurationError(
                f"flash: a command is of no page, or reaches beyond the namespace's {most} pages; shorten or move it"
            )

    def _admit(self, commands: Columns) -> Columns:
        """Return the operations of commands as they leave link and controller; number and note the commands."""
        flash, count = self.flash, len(commands["page"])
        operations = self._split(commands)
        command, writes = operations["command"], operations["writes"]
        link = np.where(commands["engine"], 0, flash.link_ns(commands["pages"]))
        entry = self._release(commands) + flash.command_ns + np.where(commands["writes"], link, 0)
        operations["ready"] = entry[command]
        operations["service"] = np.where(writes, operations["pages"] * flash.transfer_ns, flash.read_ns)
        operations["number"] = np.arange(len(command)) + self._operations
        noted = {"number": np.arange(count) + self._commands, "left": np.bincount(command, minlength=count)}
        self._open = join(self._open, commands_table(count) | commands | noted)
        self._first = int(self._open["number"].min(initial=self._commands))
        self._place = np.zeros(self._commands + count - self._first, np.int64)
        self._place[self._open["number"] - self._first] = np.arange(len(self._open["number"]))
        operations["command"] = command + self._commands
        self._commands, self._operations = self._commands + count, self._operations + len(command)
        return operations

    def _split(self, commands: Columns) -> Columns:
        """Return the operations of commands: planes of a die work together on pages of one command."""
        dies, planes = self.flash.dies, self.flash.planes
        command, place = spread(self.flash.array_operations(commands["pages"]))
        first = place // dies * (dies * planes) + place % dies
        page = commands["page"][command] + first
        pages = np.minimum(-(-(commands["pages"][command] - first) // dies), planes)
        flags = {name: commands[name][command] for name in ("writes", "engine")}
        return operations_table() | {"command": command, "page": page, "pages": pages, "die": page % dies} | flags

    def _release(self, commands: Columns) -> Integers:
        """Return when commands may enter: the engine's by a token bucket (virtual scheduling of ITU-T I.371)."""
        released, own = commands["arrival_ns"].copy(), commands["engine"]
        if self._limit and own.any():
            cost = commands["pages"][own] * self.flash.page_bytes * SECOND // self._limit
            ends = first_come(np.maximum(released[own], self._bucket_ns), cost)
            released[own] = np.maximum(released[own], ends - cost - BURST_BYTES * SECOND // self._limit)
            self._bucket_ns = int(ends[-1])
        return released

    def _map(self, operations: Columns, ends: Integers, until_ns: int) -> Columns:
        """Return the writes that reach their dies before the window ends, mapped in this order."""
        operations = join(self._unmapped, operations | {"ready": ends})
        operations = take(operations, np.lexsort((operations["number"], operations["ready"])))
        reach = np.searchsorted(operations["ready"], until_ns)
        operations, self._unmapped = take(operations, slice(reach)), take(operations, slice(reach, None))
        which, row = spread(operations["pages"])
        costs, refused = self.mapping.write(operations["page"][which] + row * self.flash.dies)
        service = operations["service"] = np.zeros(len(operations["page"]), np.int64)
        service[which[~refused]] = self.flash.program_ns
        np.add.at(service, which, costs)
        self._open["failed"][self._place[operations["command"][which[refused]] - self._first]] = True
        return operations

    def _end(self, operations: Columns, ends: Integers) -> None:
        """Note when operations end that were their commands' last but for the link, which the host's reads cross."""
        places = self._place[operations["command"] - self._first]
        crossing = ~operations["engine"] & ~operations["writes"]
        link = np.where(crossing, self.flash.link_ns(self._open["pages"][places]), 0)
        np.maximum.at(self._open["finish_ns"], places, ends + link)
        np.subtract.at(self._open["left"], places, 1)


def spread(counts: Integers) -> tuple[Integers, Integers]:
    """Return, for each of ``sum(counts)`` parts, which whole it is of, and its place in it."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


@dataclass(frozen=True)
class LatencySummary:
    """Latencies of some commands, in nanoseconds; quantiles are latencies that occurred (the nearest rank)."""

    mean: float
    p50: int
    p99: int
    p999: int


def summarise_latencies(latency_ns: Integers) -> LatencySummary:
    """Return mean and quantiles of latencies, of which there is at least one."""
    ordered = np.sort(latency_ns)
    ranks = (-(-len(ordered) * share // 1000) - 1 for share in (500, 990, 999))
    return LatencySummary(float(ordered.mean()), *(int(ordered[rank]) for rank in ranks))


def queue_depths(arrival_ns: Integers, finish_ns: Integers) -> Integers:
    """Return how many commands each one met in the drive; `arrival_ns` is sorted, (n,) as `finish_ns`."""
    return np.arange(len(arrival_ns)) - np.searchsorted(np.sort(finish_ns), arrival_ns, side="right")
