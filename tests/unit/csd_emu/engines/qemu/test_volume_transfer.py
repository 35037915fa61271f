"""A file reaches a volume whole, whatever the volume held and wherever a transfer was cut."""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.engines.qemu.volume_transfer import Digests, chunk_digests, transfer, wrong_chunks
from firmware_agent.common.errors import DeviceError, EnvironmentUnfit

CHUNK = 16
contents = st.lists(st.sampled_from([bytes(7), b"\1" * 5, b"\2\0\3", bytes(CHUNK), b"x" * CHUNK]), max_size=12).map(
    b"".join
)


class FakeTarget:
    """A volume in memory: it can be cut off after some writes, or lose what is written."""

    def __init__(self, content: bytes, writes: int = 10**6, deaf: bool = False) -> None:
        self.content, self.writes, self.deaf = bytearray(content), writes, deaf
        self.written = 0

    def read(self) -> Iterator[bytes | int]:
        """Pieces of 5 bytes; those of zeros are holes."""
        for begin in range(0, len(self.content), 5):
            piece = bytes(self.content[begin : begin + 5])
            yield piece if any(piece) else len(piece)

    def write(self, offset: int, data: bytes) -> None:
        if self.writes == 0:
            raise DeviceError("the connection broke")
        self.writes -= 1
        self.written += len(data)
        if not self.deaf:
            self.content[offset : offset + len(data)] = data


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "file"


def digests_of(path: Path, content: bytes, size: int | None = None) -> Digests:
    path.write_bytes(content)
    return Digests.of(path, size, CHUNK)


@given(content=contents)
def test_a_fresh_volume_gets_the_content_and_no_chunk_of_zeros_travels(path: Path, content: bytes) -> None:
    digests, target = digests_of(path, content), FakeTarget(bytes(len(content)))
    sent = transfer(path, target, digests, True, chunk_bytes=CHUNK)
    assert bytes(target.content) == content
    assert digests.sha256 == hashlib.sha256(content).hexdigest()
    chunks = [content[begin : begin + CHUNK] for begin in range(0, len(content), CHUNK)]
    assert sent.sent_bytes == target.written == sum(len(chunk) for chunk in chunks if any(chunk))


@given(content=contents, other=st.binary(max_size=200))
def test_whatever_the_volume_holds_only_what_differs_travels(path: Path, content: bytes, other: bytes) -> None:
    digests = digests_of(path, content)
    before = other[: len(content)].ljust(len(content), b"\0")
    target = FakeTarget(before)
    sent = transfer(path, target, digests, False, chunk_bytes=CHUNK)
    assert bytes(target.content) == content
    begins = range(0, len(content), CHUNK)
    differs = [begin for begin in begins if before[begin : begin + CHUNK] != content[begin : begin + CHUNK]]
    assert sent.sent_bytes == sum(len(content[begin : begin + CHUNK]) for begin in differs)


@given(content=contents, cut=st.integers(0, 14))
def test_a_transfer_that_was_cut_goes_on_and_nothing_travels_twice(path: Path, content: bytes, cut: int) -> None:
    digests, target = digests_of(path, content), FakeTarget(bytes(len(content)), writes=cut)
    try:
        transfer(path, target, digests, True, chunk_bytes=CHUNK)
    except DeviceError:
        assert target.writes == 0
    target.writes = 10**6
    transfer(path, target, digests, False, chunk_bytes=CHUNK)
    assert bytes(target.content) == content
    whole = FakeTarget(bytes(len(content)))
    transfer(path, whole, digests, True, chunk_bytes=CHUNK)
    assert target.written == whole.written


@given(content=contents, more=st.integers(0, 100))
def test_a_volume_larger_than_its_file_is_zeros_behind_it(path: Path, content: bytes, more: int) -> None:
    size = len(content) + more
    digests, target = digests_of(path, content, size), FakeTarget(b"\7" * size)
    transfer(path, target, digests, False, chunk_bytes=CHUNK)
    assert bytes(target.content) == content + bytes(more)


def test_storage_that_keeps_nothing_is_an_error_and_not_an_endless_loop(path: Path) -> None:
    digests, target = digests_of(path, b"x" * 40), FakeTarget(bytes(40), deaf=True)
    with pytest.raises(DeviceError, match="3 of 3 pieces differ there after they were sent 3 times"):
        transfer(path, target, digests, True, chunk_bytes=CHUNK)


def test_a_file_that_changes_meanwhile_is_not_sent(path: Path) -> None:
    digests = digests_of(path, b"x" * 40)
    path.write_bytes(b"x" * 20 + b"y" * 20)
    with pytest.raises(EnvironmentUnfit, match="changed while it was sent"):
        transfer(path, FakeTarget(bytes(40)), digests, True, chunk_bytes=CHUNK)


@given(content=contents, cut=st.integers(0, 200))
def test_a_content_that_ends_early_lacks_what_is_behind_its_end(path: Path, content: bytes, cut: int) -> None:
    digests = digests_of(path, content)
    short = content[:cut]
    wrong = wrong_chunks(digests, FakeTarget(short).read(), CHUNK)
    whole = cut // CHUNK if cut < len(content) else len(digests.chunks)
    assert wrong == set(range(whole, len(digests.chunks)))


@given(content=contents, steps=st.lists(st.integers(1, 40), min_size=1))
def test_digests_do_not_depend_on_the_pieces_that_a_stream_comes_in(content: bytes, steps: list[int]) -> None:
    pieces, at, turn = list[bytes | int](), 0, 0
    while at < len(content):
        piece = content[at : at + steps[turn % len(steps)]]
        pieces.append(piece if any(piece) else len(piece))
        at, turn = at + len(piece), turn + 1
    expected = [hashlib.sha256(content[i : i + CHUNK]).digest() for i in range(0, len(content), CHUNK)]
    assert list(chunk_digests(pieces, len(content), CHUNK)) == expected


def test_the_progress_ends_with_all_of_it(path: Path) -> None:
    told: list[float] = []
    transfer(path, FakeTarget(bytes(64)), digests_of(path, b"x" * 64), True, told.append, CHUNK)
    assert told == [0.25, 0.5, 0.75, 1.0]
