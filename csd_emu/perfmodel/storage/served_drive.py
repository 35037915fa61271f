"""A drive in service: its flash, what its host asks of it, and what its engine reads and writes for training.

Times are whole nanoseconds of the array's time. What the host sees does not depend on the windows in which it is asked.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from csd_emu.perfmodel.flash.flash_drive import FlashDrive, commands_table
from csd_emu.perfmodel.flash.flash_queues import Columns, join, take
from csd_emu.perfmodel.storage.engine_commands import COMMAND_BYTES, WINDOW_NS, EngineCommands
from csd_emu.perfmodel.storage.latency_histogram import BINS, LatencyHistogram
from csd_emu.perfmodel.storage.load_source import POLL_NS, LoadSource, ScheduledLoad
from csd_emu.perfmodel.storage.read_throttle import ReadThrottle
from csd_emu.perfmodel.storage.service_figures import ServiceFigures
from csd_emu.profiles.flash_geometry import SECOND
from firmware_agent.common.errors import ConfigurationError

MOST_SECONDS = 3600
"""Of which a period's figures have the 99th percentile of each."""
MOST_WAITING = 1_000_000
"""Operations in a drive: a few seconds' of the most that one serves, and 100 MB of this machine's memory."""
_WINDOW_NS, _WINDOWS = 50_000, 16
"""After which an end that is waited for is looked for again, and the most parts of the time so far that this is."""


@dataclass
class _Period:
    """What was seen since figures were taken, in the terms of `ServiceFigures`."""

    begin_ns: int
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    commands: list[int] = field(default_factory=lambda: [0, 0])
    sizes: list[int] = field(default_factory=lambda: [0, 0])
    failed: int = 0
    busy_ns: int = 0
    waited_ns: int = 0
    over_limit: int = 0
    seconds: list[float] = field(default_factory=list)
    alone_seconds: float = 0.0
    trained_seconds: float = 0.0


class ServedDrive:
    """One drive in service.

    Attributes:
        drive: its flash.
        now_ns: up to when the host was served.
        throttle: decides how fast the engine may read; None for as fast as the flash is.
    """

    def __init__(
        self,
        drive: FlashDrive,
        loads: Sequence[ScheduledLoad],
        engine_bytes_per_second: float,
        throttle: ReadThrottle | None = None,
        limit_seconds: float = float("inf"),
    ) -> None:
        """Begin at time 0, before any step.

        Args:
            drive: its flash.
            loads: what the host asks.
            engine_bytes_per_second: at which the engine asks for what it reads and writes.
            throttle: see the attribute.
            limit_seconds: above which a second's 99th percentile counts as over the limit.

        Raises:
            ConfigurationError: a load is not one of this flash.
        """
        self.drive, self.throttle = drive, throttle
        self.sources = [LoadSource(load, drive.flash, drive.mapping.namespace_pages) for load in loads]
        self._rate, self._limit_seconds = engine_bytes_per_second, limit_seconds
        # The next page that the engine reads, and that it writes.
        self._pages = np.zeros(2, np.int64)
        self._without_training: ServedDrive | None = None
        self._by_second: dict[int, LatencyHistogram] = {}
        self._second, self._period, self._idle_ns = 0, _Period(0), dict[int, int]()
        # Latencies of commands, and when they ended, that the throttle has not seen.
        self._unseen = np.zeros((2, 0), np.int64)

    @property
    def now_ns(self) -> int:
        """Up to when the host was served."""
        return self.drive.until_ns

    def begin_step(self, number: int) -> None:
        """Begin and end the loads of a step, or round."""
        for each in self.sources:
            each.begin_step(number, self.now_ns)
        if self._without_training is not None:
            self._without_training.advance(self.now_ns)
            self._without_training.begin_step(number)

    def host_bytes_per_second(self, nanoseconds: int) -> float:
        """Return what the host is about to ask of the drive on average over so long, at most a second.

        Of loads with a queue depth it is what they asked so far.
        """
        now, window = self.now_ns, max(1, min(nanoseconds, SECOND))
        pages = sum(source.count_pages(now, now + window) for source in self.sources)
        return pages * self.drive.flash.page_bytes * SECOND / window

    def advance(self, until_ns: int) -> None:
        """Serve the host up to a time."""
        while self.now_ns < until_ns:
            self._serve(self._window_end(until_ns), commands_table())

    def read(self, begin_ns: int, size: int) -> int:
        """Read for training, one piece of the namespace after the other; return when all has been read."""
        return self._do(begin_ns, size, writes=False)[0]

    def write(self, begin_ns: int, size: int) -> tuple[int, bool]:
        """Write for training; return when all is written, and whether there was no room for some of it."""
        return self._do(begin_ns, size, writes=True)

    def alone_ns(self, size: int) -> int:
        """Return how long the engine would read from flash that does nothing else."""
        if size not in self._idle_ns:
            idle = FlashDrive(self.drive.flash, mapping=self.drive.mapping)
            self._idle_ns[size] = int(idle.serve(self._split(0, size, 0))["finish_ns"].max(initial=0))
        return self._idle_ns[size]

    def note_training(self, alone_seconds: float, seconds: float) -> None:
        """Take how long a piece of training would have lasted without the host's load, and how long it did."""
        self._period.alone_seconds += alone_seconds
        self._period.trained_seconds += seconds

    def take_figures(self) -> ServiceFigures:
        """Return the figures of the time since they were taken last."""
        period, self._period = self._period, _Period(self.now_ns)
        alone, flash = self._without_training, self.drive.flash
        if alone is not None:
            alone.advance(self.now_ns)
        nanoseconds, p99 = max(self.now_ns - period.begin_ns, 1), period.latencies.quantile_seconds(0.99)
        return ServiceFigures(
            seconds=(self.now_ns - period.begin_ns) / SECOND,
            **dict(zip(("reads", "writes"), period.commands, strict=True)),
            **dict(zip(("read_bytes", "write_bytes"), period.sizes, strict=True)),
            failed_writes=period.failed,
            mean_seconds=period.latencies.mean_seconds(),
            p50_seconds=period.latencies.quantile_seconds(0.5),
            p99_seconds=p99,
            p999_seconds=period.latencies.quantile_seconds(0.999),
            alone_p99_seconds=p99 if alone is None else alone.take_figures().p99_seconds,
            queue_depth=period.latencies.total_ns / nanoseconds,
            write_amplification=self.drive.mapping.write_amplification,
            die_busy_share=period.busy_ns / nanoseconds / flash.dies,
            second_p99_seconds=period.seconds,
            training_share=period.alone_seconds / period.trained_seconds if period.trained_seconds else 1.0,
            waited_seconds=period.waited_ns / SECOND,
            over_limit_seconds=period.over_limit,
        )

    def _split(self, begin_ns: int, size: int, first_page: int) -> Columns:
        """Return the engine's commands for so many bytes; they arrive as fast as it asks."""
        flash, most = self.drive.flash, self.drive.mapping.namespace_pages
        each = max(1, min(COMMAND_BYTES // flash.page_bytes, most))
        pages = -(-size // flash.page_bytes)
        commands = commands_table(-(-pages // each))
        commands["engine"][:] = True
        place = np.arange(len(commands["page"])) * each
        commands["pages"] = np.minimum(each, pages - place)
        # A piece ends before the last page of the namespace: a whole command fits in from wherever it begins.
        commands["page"] = (first_page + place) % (most - each + 1)
        commands["arrival_ns"] = begin_ns + (place * (flash.page_bytes * SECOND / self._rate)).astype(np.int64)
        return commands

    def _do(self, begin_ns: int, size: int, writes: bool) -> tuple[int, bool]:
        """Serve the engine's commands beside the host's until they have ended."""
        self.advance(begin_ns)
        if self._without_training is None:
            self._without_training = self._twin()
        begin_ns = end_ns = max(begin_ns, self.now_ns)
        commands, failed = self._split(begin_ns, size, int(self._pages[int(writes)])), False
        commands["writes"][:] = writes
        self._pages[int(writes)] += int(commands["pages"].sum())
        engine = EngineCommands(commands, self.drive.flash.page_bytes)
        while engine.left:
            wanted = max(engine.last_ns + 1, self.now_ns + max(_WINDOW_NS, (self.now_ns - begin_ns) // _WINDOWS))
            if self.throttle is not None and self.throttle.bytes_per_second:
                wanted = min(wanted, (self.now_ns // WINDOW_NS + 1) * WINDOW_NS)
            until = self._window_end(wanted)
            entering, waits = engine.enter(self.now_ns, until, self.throttle)
            self._period.waited_ns += until - self.now_ns if waits else 0
            ended = self._serve(until, entering)
            engine.left -= len(ended["page"])
            end_ns, failed = max(end_ns, int(ended["finish_ns"].max(initial=0))), failed or bool(ended["failed"].any())
        return end_ns, failed

    def _twin(self) -> ServedDrive:
        """Return the same drive, which will not train."""
        twin = copy.deepcopy(self)
        twin.throttle = None
        return twin

    def _window_end(self, wanted_ns: int) -> int:
        """Return the end of the next window, at most `wanted_ns`: within a second, and as short as others need it."""
        now = self.now_ns
        ends = [wanted_ns, (now // SECOND + 1) * SECOND]
        ends += [max(each.next_look_ns, (now // POLL_NS + 1) * POLL_NS) for each in self.sources if each.depth]
        if self.throttle is not None:
            ends.append((now // self.throttle.interval_ns + 1) * self.throttle.interval_ns)
            if self.throttle.silent:
                first = min(each.first_ns(min(ends)) for each in self.sources)
                if first <= now:
                    self.throttle.wake()
                else:
                    ends.append(first)
        return max(min(ends), now + 1)

    def _serve(self, until_ns: int, own: Columns) -> Columns:
        """Serve the host, and the engine's `own` commands, in one window; return the engine's that ended."""
        now, first = self.now_ns, self.drive.commands
        parts = [*(source.take_until(until_ns) for source in self.sources), own]
        commands, whose = join(*parts), np.repeat(np.arange(len(parts)), [len(part["page"]) for part in parts])
        commands["arrival_ns"] = np.maximum(commands["arrival_ns"], now)
        if np.any(np.diff(commands["arrival_ns"]) < 0):
            order = np.argsort(commands["arrival_ns"], kind="stable")
            commands, whose = take(commands, order), whose[order]
        ended = self.drive.serve(commands, until_ns)
        if self.drive.waiting > MOST_WAITING:
            raise ConfigurationError(
                f"host_io: {self.drive.waiting} operations wait for the dies of a drive {now / SECOND:.1f} s after the "
                "run began: its host asks for more than its flash serves for long; lower iops, or the share of writes"
            )
        for place, source in enumerate(self.sources):
            if source.depth:
                source.flying = np.concatenate([source.flying, first + np.flatnonzero(whose == place)])
                source.follow(ended)
        self._count(take(ended, ~ended["engine"]))
        return take(ended, ended["engine"])

    def _count(self, ended: Columns) -> None:
        """Count the host's commands that ended in the window up to now, and end the seconds that are over."""
        period, now = self._period, self.now_ns
        latency, writes, finish = ended["finish_ns"] - ended["arrival_ns"], ended["writes"], ended["finish_ns"]
        period.latencies.add(latency)
        for place, rows in enumerate((~writes, writes)):
            period.commands[place] += int(rows.sum())
            period.sizes[place] += int(ended["pages"][rows].sum()) * self.drive.flash.page_bytes
        period.failed += int(ended["failed"].sum())
        period.busy_ns += int(self.drive.busy_ns.sum())
        seconds = finish // SECOND
        for second in np.unique(seconds).tolist():
            self._by_second.setdefault(second, LatencyHistogram()).add(latency[seconds == second])
        while (self._second + 1) * SECOND <= now:
            p99 = self._by_second.pop(self._second, LatencyHistogram()).quantile_seconds(0.99)
            period.seconds += [p99] * (len(period.seconds) < MOST_SECONDS)
            period.over_limit += p99 > self._limit_seconds
            self._second += 1
        if self.throttle is not None:
            self._unseen = np.concatenate([self._unseen, [finish, latency]], axis=1)
            if now % self.throttle.interval_ns == 0:
                seen = self._unseen[0] < now
                self.throttle.observe(now, self._unseen[1][seen])
                self._unseen = self._unseen[:, ~seen]

    def state(self) -> Columns:
        """Return all that changes, for `restore`, but what figures were not taken of."""
        kept = list(self._by_second)
        counts = [self._by_second[second].counts for second in kept]
        own: Columns = {
            "pages": self._pages,
            "seconds": np.array([self._second, *kept], np.int64),
            "counts": np.array(counts, np.int64).reshape(-1, BINS),
            "unseen": self._unseen,
            "throttle": np.array([] if self.throttle is None else self.throttle.state(), np.float64),
        }
        parts: dict[str, FlashDrive | LoadSource | ServedDrive] = {"drive": self.drive}
        parts |= {f"source{place}": each for place, each in enumerate(self.sources)}
        if self._without_training is not None:
            self._without_training.advance(self.now_ns)
            parts["alone"] = self._without_training
        return own | {f"{part}.{name}": array for part, each in parts.items() for name, array in each.state().items()}

    def restore(self, state: Columns) -> None:
        """Go on from where a drive of the same flash and loads was.

        Raises:
            DataError: the state is not one of this drive.
        """
        if alone := _part(state, "alone"):
            self._without_training = self._twin()
            self._without_training.restore(alone)
        for place, source in enumerate(self.sources):
            source.restore(_part(state, f"source{place}"))
        self.drive.restore(_part(state, "drive"))
        (self._second, *kept), counts = state["seconds"].tolist(), state["counts"]
        self._pages, self._unseen = state["pages"].copy(), state["unseen"].copy()
        for second, row in zip(kept, counts, strict=True):
            histogram = self._by_second[second] = LatencyHistogram()
            histogram.counts += row
        if self.throttle is not None:
            self.throttle.restore(state["throttle"].tolist())
        self._period = _Period(self.now_ns)


def _part(state: Columns, prefix: str) -> Columns:
    """Return the arrays of one part, by their own names."""
    return {name.removeprefix(f"{prefix}."): array for name, array in state.items() if name.startswith(f"{prefix}.")}
