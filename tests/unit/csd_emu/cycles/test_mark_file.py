from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csd_emu.cycles.mark_file import MAX_MARKS, CycleMark, read_marks
from firmware_agent.common.errors import CalibrationError

MARK = CycleMark(1, 0, 100, 50, 80, 64)


def test_lines_come_back_and_other_counters_are_left(tmp_path: Path) -> None:
    path = tmp_path / "marks.jsonl"
    path.write_bytes(msgspec.json.encode(MARK)[:-1] + b',"loads":7}\n' + msgspec.json.encode(MARK) + b"\n")
    assert read_marks(path) == [MARK, MARK]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=60).filter(lambda text: text.strip()))
def test_anything_else_is_an_error_that_names_the_file(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "marks.jsonl"
    path.write_bytes(text)
    with pytest.raises(CalibrationError, match=r"marks\.jsonl"):
        read_marks(path)


def test_a_guest_that_marks_without_end_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "marks.jsonl"
    path.write_bytes((msgspec.json.encode(MARK) + b"\n") * MAX_MARKS)
    with pytest.raises(CalibrationError, match="more marks"):
        read_marks(path)


def test_a_file_that_is_missing_or_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    for name in ("none", "link"):
        with pytest.raises(CalibrationError, match=name):
            read_marks(tmp_path / name)
