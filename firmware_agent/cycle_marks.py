"""Marks in the instruction stream by which a core model outside the machine tells phases of a step apart.

A mark is ``movz xzr, #0xC5D0 + number``: it does nothing on any ARMv8 core, needs no privilege, and no compiler makes
it.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct

from firmware_agent.common.errors import ModelError
from firmware_agent.common.frames.measure_frames import PhaseMark

_BASE, _MARKS = 0xC5D0, 16
_MOVZ_XZR, _RET = 0xD2800000 | 31, 0xD65F03C0
_CODE_BYTES = 8


class CycleMarks:
    """Executes marks."""

    def __init__(self) -> None:
        """Write the marks' code into memory that can be executed.

        Raises:
            ModelError: this is no ARMv8 core, or the kernel gives no such memory.
        """
        if platform.machine() != "aarch64":
            raise ModelError(f"cycles are counted on ARMv8 cores alone, and this is a {platform.machine()}")
        try:
            code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        except OSError as error:
            raise ModelError(f"the kernel gives no executable memory for cycle marks ({error})") from error
        # The A64 code of a function for each mark, which executes it and returns.
        code.write(b"".join(struct.pack("<II", _MOVZ_XZR | (_BASE + number) << 5, _RET) for number in range(_MARKS)))
        self._memory = (ctypes.c_char * mmap.PAGESIZE).from_buffer(code)  # keeps the mapping as long as the functions
        address, prototype = ctypes.addressof(self._memory), ctypes.PYFUNCTYPE(None)
        self._functions = [prototype(address + _CODE_BYTES * number) for number in range(_MARKS)]

    def execute(self, mark: PhaseMark) -> None:
        """Execute one mark."""
        self._functions[mark]()
