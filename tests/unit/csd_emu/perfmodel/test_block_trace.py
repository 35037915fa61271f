"""Traces in both formats, and lines that cannot be."""

from pathlib import Path

import pytest

from csd_emu.perfmodel.block_trace import LONGEST_LINE, read_block_trace
from firmware_agent.common.errors import DataError

MSR = """128166372003061629,usr,0,Read,7014609920,24576,41286
128166372016382155,usr,0,Write,1317441536,8193,1963
128166372016382155,usr,0,Read,4095,2,1963
"""
V2 = """fio version 2 iolog
/dev/sdb add
/dev/sdb open
/dev/sdb read 0 4096
/dev/sdb wait 250 0
/dev/sdb write 8192 4096
/dev/sdb sync 0 0
/dev/sdb close
"""
V3 = """fio version 3 iolog
0 /dev/sdb add
3 /dev/sdb open
5 /dev/sdb read 4096 1
9 /dev/sdb trim 0 4096
11 /dev/sdb write 0 8192
"""
PAGES = 2_000_000


def read(tmp_path: Path, text: str) -> dict[str, list[int]]:
    path = tmp_path / "trace"
    path.write_text(text)
    commands = read_block_trace(path, 4096, PAGES)
    return {name: commands[name].tolist() for name in ("arrival_ns", "page", "pages", "writes")}


def test_traces_become_commands_of_the_pages_that_they_touch(tmp_path: Path) -> None:
    assert read(tmp_path, MSR) == {
        **{"arrival_ns": [0, 1_332_052_600, 1_332_052_600], "page": [7014609920 // 4096, 1317441536 // 4096, 0]},
        **{"pages": [7, 3, 2], "writes": [False, True, False]},
    }
    assert read(tmp_path, V2) == {
        **{"arrival_ns": [0, 250_000], "page": [0, 2], "pages": [1, 1], "writes": [False, True]}
    }
    assert read(tmp_path, V3) == {
        **{"arrival_ns": [5000, 11000], "page": [1, 0], "pages": [1, 2], "writes": [False, True]}
    }


@pytest.mark.parametrize("text", [MSR, V2, V3])
def test_blank_lines_are_skipped(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, "\n" + text.replace("\n", "\n \n\n")) == read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (MSR + "128166372016382154,usr,0,Read,0,512,1\n", 4, "time goes back"),
        (MSR + "128166372016382155,usr,0,Read,0,0,1\n", 4, "length 0; the length must be positive"),
        (MSR + "128166372016382155,usr,0,Read,8191999999,2,1\n", 4, "within the namespace's 8192000000 bytes"),
        (MSR + "128166372016382155,usr,0,Read,-1,2,1\n", 4, "offset -1"),
        (MSR + "128166372016382155,usr,0,Erase,0,2,1\n", 4, "the action 'erase' is not known"),
        (MSR + "128166372016382155,usr\n", 4, "MSR Cambridge's CSV or fio's iolog"),
        (MSR + "9" * 40 + ",usr,0,Read,0,2,1\n", 4, "time goes back, or on by"),
        (MSR + "x" * (LONGEST_LINE + 1), 4, "MSR Cambridge's"),
        ("fio version 1 iolog\n", 1, "MSR Cambridge's"),
        (V2 + "/dev/sdb wait -1 0\n", 9, "time goes back"),
        (V2 + "/dev/sdb\n", 9, "MSR Cambridge's"),
        (V3 + "10 /dev/sdb read 0 4096\n", 7, "time goes back"),
        (V3 + "12 /dev/sdb read 0 0\n", 7, "length 0"),
        (V3 + "12 /dev/sdb read 0 0x10\n", 7, "3 or 5 fields are due: time file action .*0x10"),
        (V3 + "5\n", 7, "3 or 5 fields are due: .*it is '5'; give"),
        (V3 + "\n12 /dev/sdb\n", 8, "3 or 5 fields are due: "),
        (V2 + "5\n", 9, "2 or 4 fields are due: file action offset length; "),
        (
            "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n" + MSR,
            1,
            "7 fields are due: .* whole numbers",
        ),
        (V2 + f"/dev/sdb wait {2**49} 0\n" * 40, 11, "on by more than 36 years in all"),
        (V3 + f"{2**50} /dev/sdb read 0 1\n{2**51} /dev/sdb read 0 1\n", 8, "on by more than 36 years in all"),
        ("".join(f"{line * 2**53},usr,0,Read,0,512,1\n" for line in range(40)), 3, "on by more than 36 years in all"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, text: str, line: int, says: str) -> None:
    with pytest.raises(DataError, match=f"trace, line {line}: .*{says}"):
        read(tmp_path, text)


def test_a_trace_that_is_too_long_or_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csd_emu.perfmodel.block_trace.MOST_LINES", 2)
    with pytest.raises(DataError, match="line 3: the trace has more than 2 lines; cut it"):
        read(tmp_path, MSR)
    with pytest.raises(DataError, match=r"cannot be read .*No such file.*none'\); check the path"):
        read_block_trace(tmp_path / "none", 4096, PAGES)


@pytest.mark.parametrize("text", ["", "\n", V2[: V2.index("/dev/sdb read")]])
def test_a_trace_without_commands_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="trace: it has no reads or writes"):
        read(tmp_path, text)
