"""What a drive does to itself: damaged slices, a full disk."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import DeviceFailed
from firmware_agent.common.frames.session_frames import Slice
from firmware_agent.common.slices import Array, cut_slices
from firmware_agent.faults.fault_injection import FILLER, Saboteur, damage
from tests.support import strategies


def sent(saboteur: Saboteur, pieces: list[Slice]) -> list[Slice]:
    """The slices as they leave."""
    return [piece if (harm := saboteur.next_damage()) is None else harm(piece) for piece in pieces]


def slices(data: bytes, size: int) -> list[Slice]:
    import numpy as np

    return list(cut_slices(1, {"w": np.frombuffer(data, np.uint8)}, size))


@given(strategies.arrays(), st.integers(1, 64))
def test_damage_changes_one_byte_and_nothing_else(arrays: dict[str, Array], size: int) -> None:
    for piece in cut_slices(1, arrays, size):
        bad = damage(piece)
        assert sum(a != b for a, b in zip(bytes(piece.data), bytes(bad.data), strict=True)) == 1
        fields = [name for name in Slice.__struct_fields__ if name != "data"]
        assert [getattr(bad, name) for name in fields] == [getattr(piece, name) for name in fields]


def test_the_next_slice_alone_is_damaged() -> None:
    saboteur, pieces = Saboteur(None), slices(bytes(range(100)), 10)
    assert sent(saboteur, pieces) == pieces
    assert saboteur.do("corrupt") == 0
    damaged = sent(saboteur, pieces)
    assert damaged[0] == damage(pieces[0])
    assert damaged[1:] == pieces[1:]
    assert sent(saboteur, pieces) == pieces


def test_damage_that_was_asked_for_waits_for_a_slice_and_ends_with_the_session() -> None:
    saboteur, pieces = Saboteur(None), slices(b"1234", 4)
    saboteur.do("corrupt")
    assert sent(saboteur, []) == []
    assert sent(saboteur, pieces) != pieces
    saboteur.do("corrupt")
    saboteur.end()
    assert sent(saboteur, pieces) == pieces


@pytest.mark.parametrize("harm", ["fill", "clear"])
def test_a_disk_that_is_not_the_drives_own_is_left_alone(harm: str) -> None:
    with pytest.raises(DeviceFailed, match=f"{harm}: .*the host machine's; use qemu"):
        Saboteur(None).do(harm)


class SmallDisk:
    """A disk that has room for so many bytes, whole blocks of it."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes, self.taken = free_bytes, 0

    def posix_fallocate(self, descriptor: int, offset: int, length: int) -> None:
        if offset + length > self.free_bytes:
            raise OSError(errno.ENOSPC, "full")
        os.truncate(descriptor, offset + length)
        self.taken = max(self.taken, offset + length)


@pytest.mark.parametrize("blocks", [0, 1, 1000, 300_001])
def test_all_of_the_disk_is_taken_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    disk = SmallDisk(blocks << 12)
    monkeypatch.setattr(os, "posix_fallocate", disk.posix_fallocate)
    saboteur = Saboteur(tmp_path)
    for _ in range(2):  # one that is full already stays so
        saboteur.do("fill")
        assert disk.taken == blocks << 12
        assert (tmp_path / FILLER).stat().st_size == blocks << 12
    saboteur.do("clear")
    saboteur.do("clear")
    assert list(tmp_path.iterdir()) == []
    saboteur.do("fill")
    saboteur.end()
    assert list(tmp_path.iterdir()) == []


def test_it_says_how_much_was_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.posix_fallocate

    def small(descriptor: int, offset: int, length: int) -> None:
        if offset + length > 64 << 10:
            raise OSError(errno.ENOSPC, "full")
        real(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", small)
    assert Saboteur(tmp_path).do("fill") >= 64 << 10


def test_a_disk_that_fails_otherwise_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(DeviceFailed, match=r"fill: .*Input/output error"):
        Saboteur(tmp_path).do("fill")
