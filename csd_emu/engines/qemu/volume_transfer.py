"""Transfer of a file to a volume on another hypervisor, chunk by chunk, until both have the same SHA-256.

Nothing is kept of how far a transfer came: what the volume holds already is read back and compared, so a transfer that
was cut goes on with the first chunk that is missing, and a damaged chunk alone is sent again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from firmware_agent.common.errors import DeviceError, EnvironmentUnfit

CHUNK_BYTES = 8 << 20
_ROUNDS = 3


class TargetVolume(Protocol):
    """A volume of a fixed size."""

    def read(self) -> Iterable[bytes | int]:
        """Yield the content from its beginning: pieces of it, and for holes their length in bytes."""

    def write(self, offset: int, data: bytes) -> None:
        """Write `data` at byte `offset`; when this returns the other side has confirmed it."""


@dataclass(frozen=True)
class Sent:
    """What a transfer took: bytes that went there, and bytes of the content that had to be compared."""

    sent_bytes: int
    compared_bytes: int


@dataclass(frozen=True)
class Digests:
    """Of a file: its size in bytes, the SHA-256 of its content and of each chunk, and which chunks are all zeros."""

    size_bytes: int
    sha256: str
    chunks: tuple[bytes, ...]
    empty: frozenset[int]

    @classmethod
    def of(cls, path: Path, size_bytes: int | None = None, chunk_bytes: int = CHUNK_BYTES) -> Digests:
        """Read the file; with `size_bytes` as if zeros followed it up to that size."""
        whole, chunks, empty = hashlib.sha256(), [], set()
        size = path.stat().st_size if size_bytes is None else size_bytes
        for number, chunk in enumerate(_chunks(path, size, chunk_bytes)):
            whole.update(chunk)
            chunks.append(hashlib.sha256(chunk).digest())
            if not chunk.strip(b"\0"):
                empty.add(number)
        return cls(size, whole.hexdigest(), tuple(chunks), frozenset(empty))


def transfer(
    path: Path,
    target: TargetVolume,
    digests: Digests,
    fresh: bool,
    tell: Callable[[float], None] = lambda fraction: None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Sent:
    """Make the target's content that of the file.

    Args:
        path: the file.
        target: a volume of the file's size.
        digests: of the file.
        fresh: the target was just made and holds zeros alone: nothing need be read before.
        tell: told the share of the chunks that is there, 0 to 1.
        chunk_bytes: as in `digests`.

    Raises:
        EnvironmentUnfit: the file is not what `digests` says any more.
        DeviceError: the content there differs however often it is sent.
    """
    sent, compared, wanted = 0, 0, set(range(len(digests.chunks)))
    wrong = wanted - digests.empty if fresh else wrong_chunks(digests, target.read(), chunk_bytes)
    compared += 0 if fresh else digests.size_bytes
    for _ in range(_ROUNDS):
        done = len(wanted) - len(wrong)
        for place, number in enumerate(sorted(wrong)):
            chunk = _chunk(path, number, digests, chunk_bytes)
            target.write(number * chunk_bytes, chunk)
            sent += len(chunk)
            tell((done + place + 1) / len(wanted))
        if not sent and not fresh:
            return Sent(0, compared)
        wrong = wrong_chunks(digests, target.read(), chunk_bytes)
        compared += digests.size_bytes
        if not wrong:
            return Sent(sent, compared)
    raise DeviceError(
        f"{path}: {len(wrong)} of {len(wanted)} pieces differ there after they were sent {_ROUNDS} times; the storage, "
        "or the way to it, is damaged"
    )


def wrong_chunks(digests: Digests, content: Iterable[bytes | int], chunk_bytes: int = CHUNK_BYTES) -> set[int]:
    """Return the numbers of the chunks that `content`, pieces and lengths of holes, does not have."""
    found = list(chunk_digests(content, digests.size_bytes, chunk_bytes))
    return {number for number, digest in enumerate(digests.chunks) if number >= len(found) or found[number] != digest}


def chunk_digests(content: Iterable[bytes | int], size_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yield the SHA-256 of each chunk of a content of `size_bytes`; of one that is cut short those that are whole."""
    nothing = hashlib.sha256(bytes(min(chunk_bytes, size_bytes))).digest()
    digest, filled, hole, passed = hashlib.sha256(), 0, True, 0
    for piece in content:
        length = piece if isinstance(piece, int) else len(piece)
        at = 0
        while at < length and passed < size_bytes:
            most = min(chunk_bytes - filled, length - at, size_bytes - passed)
            # A chunk that is one hole need not be computed: images are mostly holes.
            hole = hole and isinstance(piece, int) and filled == 0 and most == chunk_bytes
            if not hole:
                digest.update(bytes(most) if isinstance(piece, int) else memoryview(piece)[at : at + most])
            at, filled, passed = at + most, filled + most, passed + most
            if filled == chunk_bytes or passed == size_bytes:
                yield nothing if hole else digest.digest()
                digest, filled, hole = hashlib.sha256(), 0, True


def _chunk(path: Path, number: int, digests: Digests, chunk_bytes: int) -> bytes:
    begin = number * chunk_bytes
    with path.open("rb") as file:
        file.seek(begin)
        chunk = file.read(min(chunk_bytes, digests.size_bytes - begin))
    chunk = chunk.ljust(min(chunk_bytes, digests.size_bytes - begin), b"\0")
    if hashlib.sha256(chunk).digest() != digests.chunks[number]:
        raise EnvironmentUnfit(f"{path}: changed while it was sent; run it again")
    return chunk


def _chunks(path: Path, size_bytes: int, chunk_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for begin in range(0, size_bytes, chunk_bytes):
            length = min(chunk_bytes, size_bytes - begin)
            yield file.read(length).ljust(length, b"\0")
