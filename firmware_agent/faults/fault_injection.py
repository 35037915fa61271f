"""Faults that a drive injects into itself on request: corrupted slices and a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from firmware_agent.common.errors import DeviceFailed
from firmware_agent.common.frames.session_frames import Slice

FILLER = "csd-filler"
_LARGEST_BYTES, _SMALLEST_BYTES = 1 << 30, 1 << 12
# Of stat(2), whatever the file system's own are.
_BLOCK_BYTES = 512


class Saboteur:
    """Damages slices, fills the disk. What it did to the disk ends with the session."""

    def __init__(self, folder: Path | None) -> None:
        """Take a folder on the disk that may be filled, or None where the disk is not the drive's own."""
        self._filler = folder / FILLER if folder is not None else None
        self._corrupt_next = False

    def do(self, harm: str) -> int:
        """Do the harm that a `Sabotage` frame asks for; return how many bytes of the disk are taken.

        Raises:
            DeviceFailed: it cannot be done on this device.
        """
        if harm == "corrupt":
            self._corrupt_next = True
        elif self._filler is None:
            raise DeviceFailed(f"{harm}: this device is a process, its disk is the host machine's; use qemu")
        elif harm == "fill":
            return _fill(self._filler)
        else:
            self._filler.unlink(missing_ok=True)
        return 0

    def next_damage(self) -> Callable[[Slice], Slice] | None:
        """Return what is done to the slice that leaves next; None if it leaves as it is."""
        corrupt, self._corrupt_next = self._corrupt_next, False
        return damage if corrupt else None

    def end(self) -> None:
        """Forget what was asked for, and give the disk back."""
        self._corrupt_next = False
        if self._filler is not None:
            self._filler.unlink(missing_ok=True)


def damage(piece: Slice) -> Slice:
    """Return the slice with the bits of its middle byte flipped, and all else, its checksum too, as it was."""
    data = bytearray(piece.data)
    data[len(data) // 2] ^= 0xFF
    return msgspec.structs.replace(piece, data=memoryview(bytes(data)))


def _fill(path: Path) -> int:
    """Reserve all that is free for the file at `path`, and return its bytes.

    Blocks are reserved and not written, so that an emulated drive's disk does not grow on the host's.
    """
    step, size = _LARGEST_BYTES, 0
    with open(path, "ab") as stream:
        while step >= _SMALLEST_BYTES:
            try:
                os.posix_fallocate(stream.fileno(), size, step)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise DeviceFailed(f"fill: {path} cannot be made larger: {error}") from error
                step //= 2
            else:
                size += step
        return os.fstat(stream.fileno()).st_blocks * _BLOCK_BYTES
