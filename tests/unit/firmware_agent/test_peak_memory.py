from pathlib import Path

import numpy as np
import pytest

from firmware_agent.peak_memory import PeakMemory

BLOCK = 64 << 20


def kernel(folder: Path, status: str = "Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t 1024 kB\n") -> Path:
    """A process's folder in /proc, as far as the peak needs it."""
    (folder / "clear_refs").touch()
    (folder / "status").write_text(status)
    return folder


def test_the_mark_is_reset_and_read(tmp_path: Path) -> None:
    memory = PeakMemory(kernel(tmp_path))
    assert (tmp_path / "clear_refs").read_text() == "5"
    assert (memory.source, memory.peak_bytes()) == ("VmHWM", 2048 << 10)
    (tmp_path / "status").write_text("VmHWM:\t4096 kB\n")
    assert memory.peak_bytes() == 4096 << 10


@pytest.mark.parametrize("fault", ["no clear_refs", "no mark"])
def test_where_the_mark_cannot_be_reset_the_whole_life_counts_and_the_source_says_so(
    tmp_path: Path, fault: str
) -> None:
    process = tmp_path / "gone" if fault == "no clear_refs" else kernel(tmp_path, "Name:\tpython\n")
    memory = PeakMemory(process)
    assert memory.source == "ru_maxrss"
    assert memory.peak_bytes() > 10e6


@pytest.mark.slow
def test_the_peak_holds_what_was_taken_since_and_not_what_was_taken_before() -> None:
    before = np.ones(4 * BLOCK, np.uint8)
    del before
    memory = PeakMemory()
    if memory.source != "VmHWM":
        pytest.skip("this kernel does not let the mark be reset")
    start = memory.peak_bytes()
    block = np.ones(BLOCK, np.uint8)
    assert BLOCK * 0.9 < memory.peak_bytes() - start < 2 * BLOCK
    del block
    assert memory.peak_bytes() - start > BLOCK * 0.9
