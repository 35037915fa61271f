"""Where each logical page lies, and what garbage collection costs: page-level mapping, one log per die.

Logical page p belongs to die p modulo the number of dies, for good. A die writes to one open block; when it is full, a
free one is opened. If that was the last, the die collects: of its closed blocks the one with the fewest valid pages
(greedy; of several, the first) is copied to the beginning of the open block and erased. So a drive that has been
written for long has one open and one free block on each die. A block is one of each plane.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.flash.flash_parameters import FlashParameters
from csd_emu.perfmodel.flash.flash_queues import Integers, spread

Flags = npt.NDArray[np.bool_]


class PageMapping:
    """The mapping of one drive.

    Attributes:
        flash: geometry and times.
        namespace_pages: logical pages; more than the flash has room for is a thin namespace, which may fill up.
        page_of: (namespace_pages,) int32, the physical page of each logical one, -1 if there is none.
        owner: (physical pages,) int32, the logical page that a physical one holds, -1 if it is free or stale.
        valid: (blocks,) int64, physical pages of each block that hold data.
        live: (dies,) int64, the same of each die.
        written_pages, copied_pages, erased_blocks: so far, by commands and by collection.
    """

    def __init__(self, flash: FlashParameters, namespace_pages: int | None = None, filled: bool = True) -> None:
        """Lay out a drive, of which every page was written once in order if it is `filled`."""
        self.flash = flash
        self.namespace_pages = flash.namespace_pages if namespace_pages is None else namespace_pages
        self.written_pages = self.copied_pages = self.erased_blocks = 0
        blocks, size = flash.blocks_per_plane, flash.pages_erased
        self.page_of = np.full(self.namespace_pages, -1, np.int32)
        self.owner = np.full(flash.physical_pages, -1, np.int32)
        self.valid = np.zeros(flash.dies * blocks, np.int64)
        self.live = np.zeros(flash.dies, np.int64)
        pages = np.arange(min(self.namespace_pages, flash.dies * flash.usable_pages_per_die) if filled else 0)
        row, die = np.divmod(pages, flash.dies)
        self._commit(pages, die * blocks * size + row)
        self._open, self._used = np.arange(flash.dies) * blocks + self.live // size, self.live % size
        self._free = [list(range(blocks * die - 1, last, -1)) for die, last in enumerate(self._open.tolist(), 1)]

    @property
    def write_amplification(self) -> float:
        """Pages programmed per page written; 1 before any is written."""
        return 1 + self.copied_pages / max(self.written_pages, 1)

    def write(self, pages: Integers) -> tuple[Integers, Flags]:
        """Write logical pages in their order.

        Returns:
            (n,) nanoseconds that the die collects before it programs each page, and (n,) whether it has no room for it:
            then nothing is written, and what the page held before is still there.
        """
        size, costs, refused = self.flash.pages_erased, np.zeros(len(pages), np.int64), self._without_room(pages)
        places = np.flatnonzero(~refused)
        self.written_pages += len(places)
        die = (pages[places] % self.flash.dies).astype(np.uint16)
        places = places[np.argsort(die, kind="stable")]
        left = np.bincount(die, minlength=self.flash.dies)
        begin = np.cumsum(left) - left
        while left.any():
            count = np.minimum(left, size - self._used)
            which, row = spread(count)
            self._commit(pages[places[begin[which] + row]], self._open[which] * size + self._used[which] + row)
            for value, change in ((self._used, count), (begin, count), (left, -count)):
                value += change
            for full in np.flatnonzero(left).tolist():
                costs[places[begin[full]]] += self._open_next(full)
        return costs, refused

    def _without_room(self, pages: Integers) -> Flags:
        """Tell which pages have no place yet, on dies that have no room left; the first to come get what is left."""
        refused, dies = np.zeros(len(pages), np.bool_), self.flash.dies
        if self.namespace_pages > dies * self.flash.usable_pages_per_die:
            fresh = np.flatnonzero(self.page_of[pages] < 0)
            values, first, which = np.unique(pages[fresh], return_index=True, return_inverse=True)
            order = np.lexsort((first, values % dies))
            die = values[order] % dies
            rank = np.arange(len(die)) - np.searchsorted(die, die)
            lacks = rank + self.live[die] >= self.flash.usable_pages_per_die
            refused[fresh] = lacks[np.argsort(order)[which]]
        return refused

    def _commit(self, pages: Integers, places: Integers) -> None:
        """Map logical pages, of which the last of equal ones counts, to physical ones that are free."""
        before, size = self.page_of[pages], self.flash.pages_erased
        self.page_of[pages] = places
        kept = self.page_of[pages] == places
        stale, had = before[kept & (before >= 0)], kept & (before < 0)
        self.owner[stale] = -1
        self.owner[places[kept]] = pages[kept]
        np.add.at(self.valid, places[kept] // size, 1)
        np.subtract.at(self.valid, stale // size, 1)
        np.add.at(self.live, pages[had] % self.flash.dies, 1)

    def _open_next(self, die: int) -> int:
        """Open a die's next block, and collect if it was the last but one; return the nanoseconds that this takes."""
        size, flash, free = self.flash.pages_erased, self.flash, self._free[die]
        opened = self._open[die] = free.pop()
        self._used[die] = 0
        if free:
            return 0
        first = die * flash.blocks_per_plane
        counts = self.valid[first : first + flash.blocks_per_plane].copy()
        counts[opened - first] = size + 1
        victim = first + int(counts.argmin())
        pages = self.owner[victim * size : (victim + 1) * size]
        moved = pages[pages >= 0].astype(np.int64)
        self._commit(moved, opened * size + np.arange(len(moved)))
        self._used[die] = len(moved)
        free.append(victim)
        self.copied_pages += len(moved)
        self.erased_blocks += 1
        return -(-len(moved) // flash.planes) * (flash.read_ns + flash.program_ns) + flash.erase_ns
