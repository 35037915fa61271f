"""World of the bench of `protect`: one drive's flash, its host's load, and a training that streams its records."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.flash.flash_drive import HOST_FIRST, FlashDrive, commands_table
from csd_emu.perfmodel.flash.flash_parameters import SECOND, FlashParameters, flash_ceiling
from csd_emu.perfmodel.flash.flash_queues import Columns, Integers, join, take
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.perfmodel.host_load import DIURNAL, HostLoad, LoadGenerator

INTERVAL_NS = 10_000_000
# Of an engine's command: half of the dies read a page, as with 128 KiB and 64 dies.
COMMAND_BYTES = 8_192
PROTECT_KINDS = ("steady", "bursts", "diurnal", "sequential", "writes")
# From the end of an interval and the latencies, (n,) nanoseconds, of commands that ended in it, to bytes per second.
Control = Callable[[int, Integers], float]


@dataclass(frozen=True)
class StreamedTraining:
    """What an engine reads: so many bytes, then it computes for so long, over and over; at most so many a second."""

    read_bytes: int
    compute_ns: int
    most_bytes_per_second: float


@dataclass(frozen=True)
class ServiceOutcome:
    """What came of a run.

    Attributes:
        p99_ns: (seconds,) 99th percentile of the host's commands that ended in each second, 0 without any.
        trained_bytes: read by the engine.
    """

    p99_ns: Integers
    trained_bytes: int


class _Engine:
    """The engine's reads in progress."""

    def __init__(self, training: StreamedTraining, drive: FlashDrive) -> None:
        self._training, self._drive = training, drive
        self.trained = self._begin_ns = self._pending = self._commands = self._last_ns = 0
        self._left = training.read_bytes

    def take_until(self, until_ns: int, rate: float) -> Columns:
        """Return the commands that enter in the window up to `until_ns` at a rate."""
        flash, start = self._drive.flash, max(self._begin_ns, self._drive.until_ns)
        if self._left <= 0 or rate <= 0 or start >= until_ns:
            return commands_table()
        gap = max(1, int(COMMAND_BYTES / rate * SECOND))
        count = min(-(-self._left // COMMAND_BYTES), -(-(until_ns - start) // gap))
        table, size = commands_table(count), COMMAND_BYTES // flash.page_bytes
        table["arrival_ns"] = start + gap * np.arange(count)
        table["page"] = (self._commands + np.arange(count)) % (self._drive.mapping.namespace_pages // size) * size
        table["pages"][:], table["engine"][:] = size, True
        self._commands, self._begin_ns = self._commands + count, start + gap * count
        self._left, self._pending = self._left - count * COMMAND_BYTES, self._pending + count
        return table

    def end(self, finish_ns: Integers) -> None:
        """Take ends of commands; when all of a read have ended, compute, and begin the next."""
        self._pending -= len(finish_ns)
        self.trained += len(finish_ns) * COMMAND_BYTES
        self._last_ns = max(self._last_ns, int(finish_ns.max(initial=0)))
        if self._left <= 0 and not self._pending:
            self._begin_ns, self._left = self._last_ns + self._training.compute_ns, self._training.read_bytes


@dataclass(frozen=True)
class ProtectCase:
    """A drive with a load and a training.

    Attributes:
        kind, policy, seed, seconds: of the case.
        flash, mapping: of the drive.
        load, host: what the host asks, and the commands.
        training: what the engine asks.
    """

    kind: str
    policy: str
    seed: int
    seconds: int
    flash: FlashParameters
    mapping: PageMapping
    load: HostLoad
    host: Columns
    training: StreamedTraining

    def serve(self, control: Control, rate: float) -> ServiceOutcome:
        """Serve host and engine; `control` sets the engine's rate after each interval, the first one is `rate`."""
        drive = FlashDrive(self.flash, self.policy, mapping=copy.deepcopy(self.mapping))
        engine = _Engine(self.training, drive)
        unseen, own, p99 = np.zeros((2, 0), np.int64), list[Integers](), list[int]()
        windows = self.seconds * SECOND // INTERVAL_NS
        bounds = np.searchsorted(self.host["arrival_ns"], INTERVAL_NS * np.arange(windows + 1)).tolist()
        for window, part in enumerate(map(slice, bounds, bounds[1:])):
            until = (window + 1) * INTERVAL_NS
            commands = join(take(self.host, part), engine.take_until(until, rate))
            ended = drive.serve(take(commands, np.argsort(commands["arrival_ns"], kind="stable")), until)
            engine.end(ended["finish_ns"][ended["engine"]])
            mine = take(ended, np.flatnonzero(~ended["engine"]))
            finish = mine["finish_ns"]
            unseen = np.concatenate([unseen, [finish, finish - mine["arrival_ns"]]], axis=1)
            done = unseen[0] < until
            own.append(unseen[1][done])
            unseen = unseen[:, ~done]
            rate = min(control(until, own[-1]), self.training.most_bytes_per_second)
            if until % SECOND == 0:
                together, own = np.concatenate(own), []
                p99.append(int(np.quantile(together, 0.99, method="inverted_cdf")) if len(together) else 0)
        return ServiceOutcome(np.array(p99), engine.trained)


def draw_protect_case(kind: str, policy: str, seed: int, seconds: int) -> tuple[ProtectCase, float]:
    """Draw a case, and where its limit lies between host alone (0) and training unthrottled (1), in logarithms."""
    draw = np.random.default_rng([seed, PROTECT_KINDS.index(kind), policy == HOST_FIRST])
    flash = FlashParameters(
        channels=1, dies_per_channel=4, blocks_per_plane=64, pages_per_block=64, over_provisioning=0.28
    )
    pages, writes = 16 if kind == "sequential" else 1, kind == "writes"
    read_share = draw.uniform(0.6, 0.9) if writes else 1.0
    shape: tuple[int, ...] = (1,)
    period = SECOND
    if kind == "bursts":
        shape, period = (1, *[0] * int(draw.integers(1, 5))), int(draw.uniform(2, 12) * SECOND)
    elif kind == "diurnal":
        shape, period = DIURNAL, int(draw.uniform(15, 30) * SECOND)
    highest = draw.uniform(0.15, 0.5) * flash_ceiling(flash, read_share, pages, 1.5 if writes else 1.0).iops
    load = HostLoad(
        pages * flash.page_bytes,
        flash.namespace_pages,
        read_share,
        kind == "sequential",
        iops=highest * sum(shape) / len(shape) / max(shape),
        shape=shape,
        period_ns=period,
        seed=seed,
    )
    most = draw.uniform(0.6, 1.3) * flash_ceiling(flash).bytes_per_second
    read = int(np.exp(draw.uniform(np.log(1e6), np.log(32e6))))
    training = StreamedTraining(read, int(read / most * draw.uniform(0.2, 2) * SECOND), most)
    mapping = PageMapping(flash)
    for _ in range(6 if writes else 0):
        mapping.write(draw.integers(0, flash.namespace_pages, flash.namespace_pages // 2))
    host = LoadGenerator(load, flash).take_until(seconds * SECOND)
    return ProtectCase(kind, policy, seed, seconds, flash, mapping, load, host, training), draw.uniform(0.3, 0.7)
