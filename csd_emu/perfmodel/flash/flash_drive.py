"""One drive's flash: commands of host and engine in, their ends out, window after window of device time.

A read takes the controller's time, its dies' read, its channels' way out and, for the host, the link; a write the link,
the controller, its channels' way in and its dies' program. Pages are mapped when they reach the die, in that order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from csd_emu.perfmodel.flash.flash_queues import Columns, Integers, Stations, check_like, first_come, join, spread, take
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.profiles.flash_geometry import SECOND, FlashParameters
from firmware_agent.common.errors import ConfigurationError

FAIR, HOST_FIRST, ENGINE_LIMIT = POLICIES = ("fair", "host_first", "engine_limit")
BURST_BYTES = 131_072
"""Of the engine's commands beyond its limit, at once."""
FOREVER = 2**62
"""Nanoseconds, later than anything."""
# Where an operation is: it waits for the way in, for its die, for the way out, has ended.
_INTO, _DIE, _OUT, _ENDED = range(4)
_OWN = "arrival_ns", "page", "pages", "number", "finish_ns"
_OPERATION = "arrival_ns", "page", "pages", "number", "ready", "service", "die", "stage"


def commands_table(rows: int = 0, numbers: Sequence[str] = _OWN) -> Columns:
    """Return a table of commands.

    What a command says: `arrival_ns`, the first logical `page` and how many `pages`, whether it `writes`, and whether
    it is the `engine`'s. What the drive adds: `number`, counted from the drive's first; `finish_ns`; and whether it
    `failed`: a write for which there was no room.
    """
    flags = {name: np.zeros(rows, np.bool_) for name in ("writes", "engine", "failed")}
    return {name: np.zeros(rows, np.int64) for name in numbers} | flags


class FlashDrive:
    """The flash of one drive, with all that it has in progress.

    Attributes:
        flash: geometry and times.
        mapping: where its pages lie, and how many were copied.
        until_ns: where the last window ended.
        busy_ns: (dies,) how long each die worked in the last window.
        commands: how many it has taken.
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
        self._stations = tuple(Stations(count, policy == HOST_FIRST) for count in servers)
        self._operations, self.commands, self._bucket_ns = commands_table(numbers=_OPERATION), 0, 0

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
        dies, into, out_of = self._stations
        spill = np.maximum(dies.free_ns - self.until_ns, 0)
        operations = self._operations = join(self._operations, self._split(commands))
        stage = operations["stage"]
        self._map(operations, into.serve(operations, np.flatnonzero(stage == _INTO), until_ns))
        began = dies.serve(operations, np.flatnonzero(stage == _DIE), until_ns)
        self.until_ns, self.busy_ns = until_ns, spill - np.maximum(dies.free_ns - until_ns, 0)
        np.add.at(self.busy_ns, operations["die"][began], operations["service"][began])
        stage[began] = np.where(operations["writes"][began], _ENDED, _OUT)
        out = np.flatnonzero(stage == _OUT)
        operations["service"][out] = operations["pages"][out] * self.flash.transfer_ns
        stage[out_of.serve(operations, out, until_ns)] = _ENDED
        return self._take_ended()

    @property
    def waiting(self) -> int:
        """Operations, of pages on one die each, that have not ended."""
        return len(self._operations["page"])

    def state(self) -> Columns:
        """Return all that changes, for `restore`."""
        own = {f"free{place}": each.free_ns for place, each in enumerate(self._stations)}
        own["numbers"] = np.array([self.until_ns, self.commands, self._bucket_ns], np.int64)
        operations = {f"operation.{name}": column for name, column in self._operations.items()}
        return own | operations | {f"mapping.{name}": array for name, array in self.mapping.state().items()}

    def restore(self, state: Columns) -> None:
        """Go on from where a drive of the same flash was.

        Raises:
            DataError: the state is not one of this flash.
        """
        rows = len(state.get("operation.page", ()))
        pending = {f"operation.{name}": column for name, column in commands_table(rows, _OPERATION).items()}
        check_like(state, self.state() | pending)
        self.mapping.restore({name[8:]: array for name, array in state.items() if name.startswith("mapping.")})
        for place, each in enumerate(self._stations):
            each.free_ns = state[f"free{place}"].copy()
        self.until_ns, self.commands, self._bucket_ns = map(int, state["numbers"])
        self._operations = {name[10:]: state[name].copy() for name in pending}

    def _check(self, commands: Columns, until_ns: int) -> None:
        """Return if the commands are of this window and namespace.

        Raises:
            ConfigurationError: they are not.
        """
        arrival, page, most = commands["arrival_ns"], commands["page"], self.mapping.namespace_pages
        late = np.any(np.diff(arrival, prepend=self.until_ns) < 0) or np.any(arrival >= until_ns)
        if late or np.any(page < 0) or np.any(commands["pages"] < 1) or np.any(page + commands["pages"] > most):
            raise ConfigurationError(
                f"flash: commands must arrive in their order, from {self.until_ns} ns to {until_ns} ns, and each be of "
                f"a page or more of the namespace's {most}; sort them, give a later window, or move them"
            )

    def _split(self, commands: Columns) -> Columns:
        """Return the operations of commands as they leave link and controller, each of pages on one die.

        Planes of a die work together on pages of one command, which are as many pages apart as there are dies.
        """
        flash, dies, planes = self.flash, self.flash.dies, self.flash.planes
        command, place = spread(flash.array_operations(commands["pages"]))
        first = place // dies * (dies * planes) + place % dies
        operations = take(commands, command)
        operations["number"] = command + self.commands
        self.commands += len(commands["page"])
        operations["pages"] = np.minimum(-(-(operations["pages"] - first) // dies), planes)
        operations["page"] += first
        operations["die"] = operations["page"] % dies
        link = np.where(commands["writes"] & ~commands["engine"], flash.link_ns(commands["pages"]), 0)
        operations["ready"] = (self._release(commands) + flash.command_ns + link)[command]
        moved = operations["pages"] * flash.transfer_ns
        operations["service"] = np.where(operations["writes"], moved, flash.read_ns)
        operations["stage"] = np.where(operations["writes"], _INTO, _DIE)
        return operations

    def _release(self, commands: Columns) -> Integers:
        """Return when commands may enter: the engine's by a token bucket (virtual scheduling of ITU-T I.371)."""
        released, own = commands["arrival_ns"].copy(), commands["engine"]
        if self._limit and own.any():
            cost = commands["pages"][own] * self.flash.page_bytes * SECOND // self._limit
            ends = first_come(np.maximum(released[own], self._bucket_ns), cost)
            released[own] = np.maximum(released[own], ends - cost - BURST_BYTES * SECOND // self._limit)
            self._bucket_ns = int(ends[-1])
        return released

    def _map(self, operations: Columns, rows: Integers) -> None:
        """Map writes that are on their way, in the order in which they reach their dies: a die has one channel."""
        rows = rows[np.argsort(operations["ready"][rows], kind="stable")]
        which, place = spread(operations["pages"][rows])
        costs, refused = self.mapping.write(operations["page"][rows][which] + place * self.flash.dies)
        service = np.zeros(len(rows), np.int64)
        service[which[~refused]] = self.flash.program_ns
        np.add.at(service, which, costs)
        operations["service"][rows], operations["stage"][rows] = service, _DIE
        operations["failed"][rows[which[refused]]] = True

    def _take_ended(self) -> Columns:
        """Return the commands whose operations have all ended, and forget these."""
        operations = self._operations
        first = np.flatnonzero(np.diff(operations["number"], prepend=-1))
        if not len(first):
            return commands_table()
        commands = take(operations, first)
        pages = commands["pages"] = np.add.reduceat(operations["pages"], first)
        crossing = np.where(commands["writes"] | commands["engine"], 0, self.flash.link_ns(pages))
        commands["finish_ns"] = np.maximum.reduceat(operations["ready"], first) + crossing
        commands["failed"] = np.logical_or.reduceat(operations["failed"], first)
        ended = np.minimum.reduceat(operations["stage"], first) == _ENDED
        left = ~np.repeat(ended, np.diff(first, append=len(operations["page"])))
        self._operations = take(operations, np.flatnonzero(left))
        return take({name: commands[name] for name in commands_table()}, np.flatnonzero(ended))
