"""What is kept of a machine's console: the end, however much it says, and never behind a link."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.engines.engine_protocol import LAST_LINES, last_words
from csd_emu.engines.qemu.qemu_monitor import KEPT_BYTES, ConsoleTail, keep, wait_for_line
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DeviceError, DeviceLost

pieces = st.lists(st.binary(max_size=200_000), max_size=12)


@given(said=pieces)
def test_a_file_holds_the_end_of_what_was_said_and_no_more_than_twice_what_is_kept(
    tmp_path_factory: pytest.TempPathFactory, said: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("device") / "console.log"
    for piece in said:
        keep(path, piece)
        assert path.stat().st_size <= max(2 * KEPT_BYTES, len(piece))
    whole = b"".join(said)
    kept = path.read_bytes() if said else b""
    assert whole.endswith(kept)
    assert len(kept) >= min(len(whole), KEPT_BYTES)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "console.log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic"):
        keep(tmp_path / "console.log", b"x")
    assert last_words(tmp_path / "console.log") == "(no console output)"
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_of_a_large_console_the_end_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "console.log"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # to read it whole would take a terabyte of memory
        file.seek(0, os.SEEK_END)
        file.write(b"".join(b"\nline %d" % number for number in range(100)))
    words = last_words(path).splitlines()
    assert len(words) == LAST_LINES
    assert words[-1] == "    line 99"


def test_a_fifo_in_its_place_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "console.log")
    assert last_words(tmp_path / "console.log") == "(no console output)"


@given(said=pieces)
def test_in_memory_too_the_end_is_kept(said: list[bytes]) -> None:
    source: Iterator[bytes] = iter(said)
    console = ConsoleTail(lambda: next(source, b""))
    for _ in said:
        console.text()
    whole = b"".join(said)
    assert console.text() == whole[-KEPT_BYTES:].decode("utf-8", "replace")


def test_the_last_words_of_a_machine_that_has_ended_are_what_it_said_before() -> None:
    answers = iter([b"first\n", b"last\n"])

    def read() -> bytes:
        try:
            return next(answers)
        except StopIteration:
            raise DeviceError("it does not run") from None

    console, lives = ConsoleTail(read), iter([True, True, False])
    with pytest.raises(DeviceLost, match=r"(?s)first.*last"):
        wait_for_line(console.text, "READY", lambda: next(lives), Deadline(60.0), poll_seconds=0.0)
