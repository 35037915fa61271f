"""The file of a machine's cycle marks: a JSON object per line with all counters of the core model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from firmware_agent.common.atomic_files import read_file
from firmware_agent.common.errors import CalibrationError

# The plugin writes no more lines, and none is longer than some hundred bytes.
MAX_MARKS = 1 << 16
_MAX_BYTES = MAX_MARKS * 512
Counter = Annotated[int, Meta(ge=0, le=2**62)]


class CycleMark(msgspec.Struct, frozen=True):
    """Counters of one core at one mark, all since the machine began.

    Attributes:
        mark: number of the mark, 0 to 15.
        core: number of the core.
        instructions: all that the core has retired.
        detail_instructions: those of them that went through the model of caches and pipeline.
        cycles: what these took.
        dram_bytes: what these moved over the DRAM bus.
    """

    mark: Annotated[int, Meta(ge=0, le=15)]
    core: Annotated[int, Meta(ge=0, lt=64)]
    instructions: Counter
    detail_instructions: Counter
    cycles: Counter
    dram_bytes: Counter


_DECODER = msgspec.json.Decoder(CycleMark)


def read_marks(path: Path) -> list[CycleMark]:
    """Return all marks that were executed so far, in order.

    Raises:
        CalibrationError: the file cannot be read, is a link, is too long, or is none of the plugin's.
    """
    try:  # no link is followed: QEMU's user may write there, and root reads
        marks = _DECODER.decode_lines(read_file(path, _MAX_BYTES, follow=False))
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise CalibrationError(f"{path}: holds no cycle marks ({error}); measure again") from error
    if len(marks) >= MAX_MARKS:
        raise CalibrationError(f"{path}: the machine executed more marks than the {MAX_MARKS} that are kept")
    return marks
