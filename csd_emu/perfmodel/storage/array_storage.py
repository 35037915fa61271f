"""All drives of an array in service: seconds of the array's time in, seconds and figures out."""

from __future__ import annotations

from collections.abc import Mapping

from csd_emu.perfmodel.flash.flash_queues import Columns
from csd_emu.perfmodel.storage.served_drive import ServedDrive
from csd_emu.profiles.flash_geometry import SECOND
from firmware_agent.common.errors import DataError

MOST_READS = 64
"""Pieces in which the records of a step, or of a round, are read; of more batches several make one."""


class ArrayStorage:
    """The drives of one array.

    Attributes:
        drives: name -> the drive.
    """

    def __init__(self, drives: Mapping[str, ServedDrive]) -> None:
        """Take the drives, which all begin at time 0."""
        self.drives = drives

    def begin_step(self, number: int) -> None:
        """Begin and end the loads of a step, or of a federated job's round."""
        for drive in self.drives.values():
            drive.begin_step(number)

    def host_bytes_per_second(self, device: str, seconds: float) -> float:
        """Return what the host is about to ask of a drive on average over so long, at most a second."""
        return self.drives[device].host_bytes_per_second(_nanoseconds(seconds))

    def read(self, device: str, begin_seconds: float, size: int, reads: int, compute_seconds: float) -> float:
        """Have a drive read its records, and compute behind each of so many reads; return the seconds that they took.

        Args:
            device: its name.
            begin_seconds: when the first read begins.
            size: bytes of all reads.
            reads: how many there are.
            compute_seconds: of all that is computed.
        """
        drive, now, taken = self.drives[device], _nanoseconds(begin_seconds), 0
        pieces = max(1, min(reads, MOST_READS, size))
        for place in range(pieces):
            end = drive.read(now, size * (place + 1) // pieces - size * place // pieces)
            taken += end - now
            now = end + _nanoseconds(compute_seconds / pieces)
        return taken / SECOND

    def alone_seconds(self, device: str, size: int, reads: int) -> float:
        """Return the seconds that the same reads take of flash that does nothing else."""
        pieces = max(1, min(reads, MOST_READS, size))
        sizes = [size * (place + 1) // pieces - size * place // pieces for place in range(pieces)]
        return sum(map(self.drives[device].alone_ns, sizes)) / SECOND

    def write(self, device: str, begin_seconds: float, size: int) -> tuple[float, bool]:
        """Have a drive write; return the seconds that it took, and whether there was no room for some of it."""
        begin = _nanoseconds(begin_seconds)
        end, failed = self.drives[device].write(begin, size)
        return max(0, end - begin) / SECOND, failed

    def end(self, seconds: float) -> None:
        """Serve the host up to a time."""
        for drive in self.drives.values():
            drive.advance(_nanoseconds(seconds))

    def state(self) -> Columns:
        """Return all that changes, for `restore`, but what figures were not taken of."""
        return {f"{device}/{name}": a for device, drive in self.drives.items() for name, a in drive.state().items()}

    def restore(self, state: Columns) -> None:
        """Go on from where an array of the same drives and loads was.

        Raises:
            DataError: the state is not one of this array.
        """
        for device, drive in self.drives.items():
            own = {name.partition("/")[2]: array for name, array in state.items() if name.partition("/")[0] == device}
            try:
                drive.restore(own)
            except (KeyError, ValueError, TypeError) as error:
                raise DataError(f"state of drive {device}: is of another one ({error}); begin the run anew") from error


def _nanoseconds(seconds: float) -> int:
    return round(seconds * SECOND)
