"""Where each logical page lies, and what garbage collection costs: page-level mapping, one log per die.

Logical page p belongs to die p modulo the number of dies, for good. A die writes to one open block; when it is full, a
free one is opened. If that was the last, the die collects: of its closed blocks the one with the fewest valid pages
(greedy; of several, the first) is copied to the beginning of the open block and erased. So a drive that has been
written for long has one open and one free block on each die. A block is one of each plane. Copying and erasing take
their time in equal slices, one before each page that is written to the rest of the open block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.flash.flash_queues import Columns, Integers, check_like, spread
from csd_emu.profiles.flash_geometry import FlashParameters
from firmware_agent.common.errors import DataError

Flags = npt.NDArray[np.bool_]


class PageMapping:
    """The mapping of one drive.

    Attributes:
        flash: geometry and times.
        page_of: (namespace_pages,) int32, the physical page of each logical one, -1 if there is none.
        owner: (physical pages,) int32, the logical page that a physical one holds, -1 if it is free or stale.
        valid: (blocks,) int64, physical pages of each block that hold data.
        live: (dies,) int64, the same of each die.
        written_pages, copied_pages, erased_blocks: so far, by commands and by collection.
    """

    def __init__(self, flash: FlashParameters, namespace_pages: int | None = None, filled: bool = True) -> None:
        """Lay out a drive, of which every page was written once in order if it is `filled`."""
        self.flash = flash
        self.written_pages = self.copied_pages = self.erased_blocks = 0
        blocks, size = flash.blocks_per_plane, flash.pages_erased
        self.page_of = np.full(flash.namespace_pages if namespace_pages is None else namespace_pages, -1, np.int32)
        self.owner = np.full(flash.physical_pages, -1, np.int32)
        self.valid = np.zeros(flash.dies * blocks, np.int64)
        self.live = np.zeros(flash.dies, np.int64)
        pages = np.arange(min(self.namespace_pages, flash.dies * flash.usable_pages_per_die) if filled else 0)
        row, die = np.divmod(pages, flash.dies)
        self._commit(pages, die * blocks * size + row)
        self._open, self._used = np.arange(flash.dies) * blocks + self.live // size, self.live % size
        self._slice_ns = np.zeros(flash.dies, np.int64)
        self._free = [list(range(blocks * die - 1, last, -1)) for die, last in enumerate(self._open.tolist(), 1)]

    @property
    def namespace_pages(self) -> int:
        """Logical pages; more than the flash has room for is a thin namespace, which may fill up."""
        return len(self.page_of)

    @property
    def write_amplification(self) -> float:
        """Pages programmed per page written; 1 before any is written."""
        return 1 + self.copied_pages / max(self.written_pages, 1)

    def age(self, seed: int, counted: bool = False) -> PageMapping:
        """Write the drive three times, page by page at random; return it: long in service, counting from 0 or on."""
        random, pages = np.random.Generator(np.random.Philox(key=seed)), self.namespace_pages
        for _ in range(6):
            self.write(random.integers(0, pages, pages // 2))
        if not counted:
            self.written_pages = self.copied_pages = self.erased_blocks = 0
        return self

    def write(self, pages: Integers) -> tuple[Integers, Flags]:
        """Write logical pages in their order.

        Returns:
            (n,) nanoseconds that the die collects before it programs each page, a slice of the whole, and (n,) whether
            it has no room for it: then nothing is written, and what the page held before is still there.
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
            place = places[begin[which] + row]
            self._commit(pages[place], self._open[which] * size + self._used[which] + row)
            costs[place] = self._slice_ns[which]
            for value, change in ((self._used, count), (begin, count), (left, -count)):
                value += change
            for full in np.flatnonzero(left).tolist():
                self._open_next(full)
        return costs, refused

    def state(self) -> Columns:
        """Return all that changes, for `restore`."""
        numbers = np.array([self.written_pages, self.copied_pages, self.erased_blocks], np.int64)
        free = np.full((self.flash.dies, self.flash.blocks_per_plane), -1, np.int64)
        for row, blocks in zip(free, self._free, strict=True):
            row[: len(blocks)] = blocks
        own = {"page_of": self.page_of, "open": self._open, "used": self._used, "free": free, "numbers": numbers}
        return own | {"slice_ns": self._slice_ns}

    def restore(self, state: Columns) -> None:
        """Go on from where a mapping of the same flash was.

        Raises:
            DataError: the state is not one of this flash.
        """
        flash, blocks = self.flash, np.arange(self.flash.dies) * self.flash.blocks_per_plane
        check_like(state, self.state())
        page_of, opened, used, free = (state[name] for name in ("page_of", "open", "used", "free"))
        places, own = (
            page_of[page_of >= 0],
            (free < 0) | (free // flash.blocks_per_plane == blocks[:, None] // flash.blocks_per_plane),
        )
        sound = len(np.unique(places)) == len(places) and np.all(places < flash.physical_pages) and np.all(own)
        if (
            not sound
            or np.any((opened < blocks) | (opened >= blocks + flash.blocks_per_plane))
            or np.any((used < 0) | (used > flash.pages_erased))
        ):
            raise DataError("state of flash: pages lie where none are; it is damaged: begin anew")
        self.page_of, self._open, self._used = page_of.copy(), opened.copy(), used.copy()
        self._slice_ns = state["slice_ns"].copy()
        self._free = [row[row >= 0].tolist() for row in free]
        self.written_pages, self.copied_pages, self.erased_blocks = map(int, state["numbers"])
        self.owner[:] = -1
        self.owner[places] = np.flatnonzero(page_of >= 0)
        self.valid = np.bincount(places // flash.pages_erased, minlength=len(self.valid))
        self.live = np.bincount(np.flatnonzero(page_of >= 0) % flash.dies, minlength=flash.dies)

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

    def _open_next(self, die: int) -> None:
        """Open a die's next block, and collect if it was the last but one, until it has room for a page."""
        size, flash, free, taken = self.flash.pages_erased, self.flash, self._free[die], 0
        first = die * flash.blocks_per_plane
        while True:
            opened = self._open[die] = free.pop()
            self._used[die] = 0
            if free:
                break
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
            taken += -(-len(moved) // flash.planes) * (flash.read_ns + flash.program_ns) + flash.erase_ns
            if len(moved) < size:
                break
        self._slice_ns[die] = -(-taken // (size - self._used[die]))
