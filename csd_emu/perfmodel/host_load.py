"""Host commands to a drive: fio-like loads, the same on any machine for the same seed.

Command i of a load depends on the seed and i alone (Philox: Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", SC 2011), its time on those before it, so windows of any sizes give the same commands. Exponential gaps take IEEE
additions, multiplications and divisions only: a logarithm of the C library may round differently elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.flash.flash_drive import commands_table
from csd_emu.perfmodel.flash.flash_queues import Columns, Integers, join, take
from csd_emu.profiles.flash_geometry import SECOND, FlashParameters
from firmware_agent.common.errors import ConfigurationError

CHUNK = 4096
"""Commands that are drawn together."""
LEAST_IOPS = 1e-5
"""About one a day: gaps that nanoseconds of 64 bits hold, all of those drawn together."""
# Relative rate of each hour of a day.
DIURNAL = (3, 2, 2, 2, 2, 3, 5, 8, 12, 15, 16, 16, 15, 15, 16, 16, 15, 13, 11, 10, 9, 8, 6, 4)
_LN2 = 0.6931471805599453


@dataclass(frozen=True)
class HostLoad:
    """What the host asks of a drive.

    Attributes:
        block_bytes: of each command.
        read_share: of the commands, 0 to 1; the others write.
        sequential: whether each begins where the one before it ended, and else anywhere, at a multiple of its size.
        iops: commands a second on average, whatever the drive does, `LEAST_IOPS` to one a nanosecond; 0 for
            `queue_depth` commands at any time.
        queue_depth: commands in the drive at any time, each following the end of another.
        poisson: whether gaps are exponential; else all are equal.
        shape: relative rates of equal parts of `period_ns`, over and over: ``(1, 0, 0, 0)`` for bursts, `DIURNAL`.
        period_ns: of the shape.
        first_page: of the part of the namespace that is used.
        span_pages: of that part.
        seed: of everything random, 0 to 2^64 - 1.
    """

    block_bytes: int
    span_pages: int
    read_share: float = 1.0
    sequential: bool = False
    iops: float = 0.0
    queue_depth: int = 0
    poisson: bool = True
    shape: tuple[int, ...] = (1,)
    period_ns: int = SECOND
    first_page: int = 0
    seed: int = 0


class LoadGenerator:
    """The commands of one load, window after window.

    Attributes:
        load: what is asked.
        pages: of each command.
    """

    def __init__(self, load: HostLoad, flash: FlashParameters, namespace_pages: int | None = None) -> None:
        """Begin at device time 0.

        Raises:
            ConfigurationError: a figure is impossible, or the load reaches beyond the namespace.
        """
        self.load, self.pages = load, -(-load.block_bytes // flash.page_bytes)
        most = flash.namespace_pages if namespace_pages is None else namespace_pages
        tests = {
            "block_bytes": load.block_bytes > 0,
            "read_share": 0 <= load.read_share <= 1,
            f"iops or queue_depth (one of them, iops from {LEAST_IOPS:g})": (
                LEAST_IOPS <= load.iops <= SECOND and load.queue_depth == 0 if load.iops else load.queue_depth > 0
            ),
            "shape": 0 < sum(load.shape) < 2**13 and min(load.shape) >= 0,
            "period_ns": len(load.shape) <= load.period_ns < 2**50,
            "first_page or span_pages": 0 <= load.first_page <= most - load.span_pages <= most - self.pages,
            "seed (from 0, below 2^64)": 0 <= load.seed < 2**64,
        }
        if wrong := [name for name, holds in tests.items() if not holds]:
            raise ConfigurationError(
                f"host load: {wrong[0]} is impossible for a namespace of {most} pages of {flash.page_bytes} bytes; "
                f"change it in {load}"
            )
        self._drawn, self._clock, self._ready = 0, 0.0, commands_table()

    def look_until(self, until_ns: int) -> Columns:
        """Return the commands of a load with a rate that arrive before `until_ns` and were not dropped yet."""
        while not len(self._ready["page"]) or self._ready["arrival_ns"][-1] < until_ns:
            self._ready = join(self._ready, self._draw_timed())
        return take(self._ready, slice(int(np.searchsorted(self._ready["arrival_ns"], until_ns))))

    def drop(self, commands: int) -> None:
        """Forget the next commands: they were taken."""
        while len(self._ready["page"]) < commands:
            commands -= len(self._ready["page"])
            self._ready = self._draw_timed() if self.load.iops else self._draw()[0]
        self._ready = take(self._ready, slice(commands, None))

    def take_until(self, until_ns: int) -> Columns:
        """Return the commands of `look_until`, and drop them."""
        taken = self.look_until(until_ns)
        self.drop(len(taken["page"]))
        return taken

    def take_next(self, arrivals: Integers) -> Columns:
        """Return the next commands, which arrive at the given times; of a load with a queue depth."""
        while len(self._ready["page"]) < len(arrivals):
            self._ready = join(self._ready, self._draw()[0])
        taken = take(self._ready, slice(len(arrivals))) | {"arrival_ns": arrivals}
        self.drop(len(arrivals))
        return taken

    def _draw(self) -> tuple[Columns, npt.NDArray[np.float64]]:
        """Return the next commands, without times, and what their gaps are drawn from, above 0 and at most 1."""
        load, first = self.load, self._drawn * CHUNK
        bits = np.random.Philox(key=load.seed, counter=self._drawn << 64).random_raw(3 * CHUNK)
        random = np.asarray(bits).reshape(3, CHUNK) >> np.uint64(11)
        self._drawn += 1
        commands, places = commands_table(CHUNK), load.span_pages // self.pages
        block = first + np.arange(CHUNK) if load.sequential else random[0].astype(np.int64)
        commands["page"] = load.first_page + block % places * self.pages
        commands["pages"][:] = self.pages
        commands["writes"] = random[1] * 2.0**-53 >= load.read_share
        return commands, (random[2] + np.uint64(1)) * 2.0**-53

    def _draw_timed(self) -> Columns:
        """Return the next commands with their times: the gaps pass in a clock that runs as fast as the shape says."""
        load = self.load
        commands, uniform = self._draw()
        gaps = (-_logarithm(uniform) if load.poisson else np.ones(CHUNK)) * (SECOND / load.iops)
        clock = np.cumsum(np.concatenate([[self._clock], gaps]))[1:]
        self._clock = float(clock[-1])
        weights = np.array(load.shape, np.int64)
        edges = np.concatenate([[0], np.cumsum(weights)]) * load.period_ns
        period, rest = np.divmod(clock.astype(np.int64), load.period_ns)
        rest *= edges[-1] // load.period_ns
        slot = np.searchsorted(edges, rest, side="right") - 1
        inside = (rest - edges[slot]) // (weights[slot] * len(weights))
        commands["arrival_ns"] = period * load.period_ns + slot * load.period_ns // len(weights) + inside
        return commands


def _logarithm(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return natural logarithms, within 1e-15 or so, the same to the bit on any machine."""
    part, exponent = np.frexp(values)
    low = part < 0.7071067811865476
    part, exponent = np.where(low, 2 * part, part), exponent - low
    ratio = (part - 1) / (part + 1)
    series = np.polyval([1 / odd for odd in range(21, 0, -2)], ratio * ratio)
    return np.asarray(2 * ratio * series + exponent * _LN2)
