"""Geometry and times of a drive's flash.

Sources of the defaults, which a profile's figures replace (docs/flash.md has their bands):

* FEMU (MoatLab/FEMU, hw/femu): 8 channels of 8 dies, 256 blocks a plane, 256 pages of 4 KiB a block; 40 us, 200 us and
  2 ms to read, program and erase; no channel time; 7 % over-provisioning.
* MQSim (CMU-SAFARI/MQSim, ssdconfig.xml): 8 channels of 4 chips of 2 dies of 2 planes, 2048 blocks a plane, 256 pages
  of 8 KiB a block, 75 us, 75 us and 3.8 ms; 333 MT/s of 8 bits; 7 % over-provisioning.
* Samsung's fifth generation of V-NAND, three bits a cell: 50 us to read, 500 us to program, 1.4 Gb/s a pin (press, July
  2018; the fourth: 0.8 Gb/s and a third slower; the sixth: 45 us and 450 us, August 2019).
* Erasing takes more than 3.5 ms (Cho et al., "AERO: Adaptive Erase Operation", ASPLOS 2024).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from firmware_agent.common.errors import ConfigurationError

SECOND = 1_000_000_000
"""Nanoseconds."""
Counts = TypeVar("Counts", int, npt.NDArray[np.int64])
_MAY_BE_ZERO = frozenset({"command_ns", "over_provisioning"})


@dataclass(frozen=True)
class FlashParameters:
    """What a drive's flash is made of, and its times in whole nanoseconds.

    Attributes:
        channels: buses between controller and dies; each carries pages in and out at the same time.
        dies_per_channel: dies, each of which does one thing at a time.
        planes: of a die, which read, program and erase together, pages of the same command.
        blocks_per_plane: blocks; a block of each plane is erased together.
        pages_per_block: pages of one plane's block.
        page_bytes: unit of mapping, reading, programming and transfers.
        read_ns: of a page of each plane, from the cells into the die's register.
        program_ns: of a page of each plane.
        erase_ns: of a block of each plane.
        channel_bytes_per_second: of one channel, each way.
        link_bytes_per_second: between host and drive, each way; the engine's own commands do not cross it.
        command_ns: of the controller, for any command; it holds up no other.
        over_provisioning: physical pages beyond those of the namespace, over the latter.
    """

    channels: int = 8
    dies_per_channel: int = 8
    planes: int = 1
    blocks_per_plane: int = 256
    pages_per_block: int = 256
    page_bytes: int = 4096
    read_ns: int = 50_000
    program_ns: int = 500_000
    erase_ns: int = 3_500_000
    channel_bytes_per_second: int = 1_400_000_000
    link_bytes_per_second: int = 3_938_000_000
    command_ns: int = 5_000
    over_provisioning: float = 0.07

    def __post_init__(self) -> None:
        """Check every figure.

        Raises:
            ConfigurationError: one is impossible, or the over-provisioning leaves collection no room.
        """
        for name in (field.name for field in fields(self)):
            value, least = getattr(self, name), int(name not in _MAY_BE_ZERO)
            if not (type(value) is int or name == "over_provisioning") or not least <= value < 2**53:
                raise ConfigurationError(
                    f"flash: {name} is {value!r}; it must be a whole number from {least} (over_provisioning a share)"
                )
        if self.dies > 2**15 or self.physical_pages >= 2**31:
            raise ConfigurationError(
                f"flash: the geometry has {self.dies} dies and {self.physical_pages} pages; use at most 32768 dies "
                "and, by fewer blocks_per_plane or a larger page_bytes, fewer than 2^31 pages"
            )
        if self.namespace_pages > self.dies * self.usable_pages_per_die or not self.namespace_pages:
            raise ConfigurationError(
                f"flash: over_provisioning is {self.over_provisioning}; of the {self.blocks_per_plane} "
                "blocks_per_plane it must leave two or more to garbage collection, and some to data: change either"
            )

    @property
    def dies(self) -> int:
        """Of the drive; die d is on channel d modulo `channels`."""
        return self.channels * self.dies_per_channel

    @property
    def pages_erased(self) -> int:
        """Pages that one erase frees: a block of each plane."""
        return self.planes * self.pages_per_block

    @property
    def physical_pages(self) -> int:
        """All pages."""
        return self.dies * self.blocks_per_plane * self.pages_erased

    @property
    def usable_pages_per_die(self) -> int:
        """Pages of a die that may hold data: two blocks are left to garbage collection."""
        return (self.blocks_per_plane - 2) * self.pages_erased

    @property
    def namespace_pages(self) -> int:
        """Logical pages that the over-provisioning leaves, the same number on each die."""
        return int(self.physical_pages / self.dies / (1 + self.over_provisioning)) * self.dies

    @property
    def transfer_ns(self) -> int:
        """Of one page through a channel, rounded up."""
        return -(-self.page_bytes * SECOND // self.channel_bytes_per_second)

    def link_ns(self, pages: Counts) -> Counts:
        """Nanoseconds that so many pages take through the link, rounded up."""
        return -(-pages * self.page_bytes * SECOND // self.link_bytes_per_second)

    def array_operations(self, pages: Counts) -> Counts:
        """Return the reads or programs of a command: planes work together where pages of it are their own."""
        over = pages % (self.dies * self.planes)
        return pages // (self.dies * self.planes) * self.dies + over - (over - self.dies) * (over > self.dies)
