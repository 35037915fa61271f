"""A tar archive as GNU tar writes it, read from a stream: regular files alone, sparse ones too, in little memory.

Python's tarfile takes memory for whatever length a header names; here a header is 512 bytes, and nothing else is read
whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

_BLOCK = 512
_COPY_BYTES = 1 << 20
# Of a sparse file; a disk of some GB has thousands.
_MOST_SEGMENTS = 1 << 17
_MAGIC, _REGULAR, _SPARSE = b"ustar", b"0\0", b"S"
# Where the fields stand that are used.
_NAME, _SIZE, _SUM, _TYPE, _PREFIX = slice(0, 100), slice(124, 136), slice(148, 156), 156, slice(345, 500)
_FIRST, _MORE, _REAL_SIZE = slice(386, 482), 482, slice(483, 495)
_FURTHER, _YET_MORE = slice(0, 504), 504
_PLACE_BYTES, _SEGMENT_BYTES = 12, 24


@dataclass(frozen=True)
class TarMember:
    """A file in the archive: its size with holes, and the (offset, bytes) of what is not a hole, in order."""

    name: str
    size: int
    segments: tuple[tuple[int, int], ...]


class TarStream:
    """The members of an archive, one after the other."""

    def __init__(self, stream: IO[bytes]) -> None:
        """Read from `stream`, which is not closed here."""
        self._stream = stream
        self._left = self._padding = 0

    def next(self) -> TarMember | None:
        """Return the next file, after the content of the one before was read; None at the end.

        Raises:
            ValueError: the archive is damaged, or holds something else than files.
        """
        if self._left:
            raise ValueError("the content of a file was not read")
        self._take(self._padding)
        header = self._take(_BLOCK)
        if not any(header):
            return None
        unsigned = sum(header) - sum(header[_SUM]) + _SUM.stop * 32 - _SUM.start * 32
        if header[257:262] != _MAGIC or _number(header[_SUM]) != unsigned:
            raise ValueError("a header is damaged")
        kind, size = header[_TYPE : _TYPE + 1], _number(header[_SIZE])
        name = _text(header[_NAME])
        if kind in (_REGULAR[:1], _REGULAR[1:]):
            if header[257:263] == b"ustar\0" and (prefix := _text(header[_PREFIX])):
                name = f"{prefix}/{name}"
            member = TarMember(name, size, ((0, size),) if size else ())
        elif kind == _SPARSE:
            member = self._sparse(name, size, header)
        else:
            raise ValueError(f"{name!r} is no regular file")
        self._left, self._padding = size, -size % _BLOCK
        return member

    def content(self, member: TarMember) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of all that the `member` that was just returned holds, in order.

        Raises:
            ValueError: the archive is cut short.
        """
        for offset, length in member.segments:
            done = 0
            while done < length:
                block = self._take(min(_COPY_BYTES, length - done))
                self._left -= len(block)
                yield offset + done, block
                done += len(block)

    def _sparse(self, name: str, size: int, header: bytes) -> TarMember:
        real, segments = _number(header[_REAL_SIZE]), _segments(header[_FIRST])
        more = header[_MORE]
        while more:
            block = self._take(_BLOCK)
            segments += _segments(block[_FURTHER])
            more = block[_YET_MORE]
            if len(segments) > _MOST_SEGMENTS:
                raise ValueError(f"{name!r} has more than {_MOST_SEGMENTS} segments")
        end = 0
        for offset, length in segments:
            if offset < end or offset + length > real:
                raise ValueError(f"{name!r} has segments out of order")
            end = offset + length
        if sum(length for _, length in segments) != size:
            raise ValueError(f"{name!r} has segments of another size")
        return TarMember(name, real, tuple(segments))

    def _take(self, count: int) -> bytes:
        content = self._stream.read(count)
        if len(content) != count:
            raise ValueError("it is cut short")
        return content


def _segments(table: bytes) -> list[tuple[int, int]]:
    """Return the (offset, length) of a sparse map that are in use; the file's end is one of length 0."""
    found = []
    for begin in range(0, len(table), _SEGMENT_BYTES):
        entry = table[begin : begin + _SEGMENT_BYTES]
        if not any(entry):
            break
        found.append((_number(entry[:_PLACE_BYTES]), _number(entry[_PLACE_BYTES:])))
    return [(offset, length) for offset, length in found if length]


def _number(field: bytes) -> int:
    """Return a number: octal digits, or, if the first bit is set, big endian."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    text = field.strip(b" \0")
    if not text:
        return 0
    if not all(0x30 <= each <= 0x37 for each in text):
        raise ValueError("a number is damaged")
    return int(text, 8)


def _text(field: bytes) -> str:
    try:
        return field.partition(b"\0")[0].decode()
    except UnicodeDecodeError as error:
        raise ValueError("a name is damaged") from error
