"""The rate that a drive's flash can serve at most."""

from __future__ import annotations

from dataclasses import dataclass

from csd_emu.profiles.flash_geometry import SECOND, FlashParameters


@dataclass(frozen=True)
class FlashCeiling:
    """The most that the flash can serve of one kind of load.

    Attributes:
        iops: commands per second.
        bytes_per_second: of them.
        limit: what is busy all the time then: ``dies``, ``channels`` or ``link``.
    """

    iops: float
    bytes_per_second: float
    limit: str


def flash_ceiling(
    flash: FlashParameters, read_share: float = 1.0, pages: int = 1, write_amplification: float = 1.0
) -> FlashCeiling:
    """Return the most that the flash serves of host commands spread evenly over its dies.

    Each station is busy for the nanoseconds that a command asks of it, over the number of such stations.

    Args:
        flash: the parameters.
        read_share: of the commands, 0 to 1; the others write.
        pages: of each command.
        write_amplification: pages programmed per page written.
    """
    operations, written = flash.array_operations(pages), 1 - read_share
    moved = pages * (write_amplification - 1) / flash.planes * (flash.read_ns + flash.program_ns)
    erased = pages * write_amplification / flash.pages_erased * flash.erase_ns if write_amplification > 1 else 0.0
    most = max(read_share, written)
    nanoseconds = {
        "dies": (read_share * operations * flash.read_ns + written * (operations * flash.program_ns + moved + erased))
        / flash.dies,
        "channels": most * pages * flash.transfer_ns / flash.channels,
        "link": most * pages * flash.page_bytes * SECOND / flash.link_bytes_per_second,
    }
    limit = max(nanoseconds, key=lambda station: nanoseconds[station])
    iops = SECOND / nanoseconds[limit]
    return FlashCeiling(iops, iops * pages * flash.page_bytes, limit)
