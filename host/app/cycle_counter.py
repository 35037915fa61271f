"""What the core model counted in a virtual machine, read phase by phase from the file of its marks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from csd_emu.cycles.mark_file import CycleMark, read_marks
from csd_emu.profiles.calibration.cycle_counts import PhaseCycles, RowCycles, split_steps
from firmware_agent.common.frames.measure_frames import PhaseMark

# The mark at a phase's end -> the phase's name.
_PHASES = {
    mark: mark.name.lower() for mark in (PhaseMark.FORWARD, PhaseMark.BACKWARD, PhaseMark.UPDATE, PhaseMark.ENCODE)
}


class CycleCounter:
    """Reads the counters that a machine's plugin writes at marks."""

    def __init__(self, path: Path, core: str) -> None:
        """Read from the file `path`; `core` is the digest of the core's parameters."""
        self._path, self._core = path, core
        self._read = 0

    def take(self) -> RowCycles:
        """Return the cycles of the steps that were marked since the last call.

        Raises:
            CalibrationError: the file tells of none, or is damaged.
        """
        marks = read_marks(self._path)
        new, self._read = marks[self._read :], len(marks)
        return RowCycles(self._core, *split_steps(phases_between(new)))


def phases_between(marks: list[CycleMark]) -> list[tuple[str, PhaseCycles]]:
    """Return each phase that ends at a mark, in order, with what was counted since the mark before."""
    return [
        (
            _PHASES[PhaseMark(after.mark)],
            PhaseCycles(
                after.detail_instructions - before.detail_instructions,
                after.cycles - before.cycles,
                after.dram_bytes - before.dram_bytes,
            ),
        )
        for before, after in pairwise(marks)
        if after.mark in _PHASES
    ]
