"""A layer as one file, for machines that should not build it: a tar archive, compressed with zstd.

It holds no key and no agent, so it can be handed on: whoever imports it makes keys of their own, and the agent added is
that of their csd-emu. It is read as GNU tar writes it, from a stream: regular files alone, sparse ones too, in little
memory. Python's tarfile takes memory for whatever length a header names; here a header is 512 bytes, and nothing else
is read whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from csd_emu.image.image_recipe import describe_files
from csd_emu.image.layer import check_space
from csd_emu.image.runner import Runner, find_tool
from firmware_agent.common.errors import ImageError

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
        if not any(header := self._take(_BLOCK)):
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
        if len(content := self._stream.read(count)) != count:
            raise ValueError("it is cut short")
        return content


def _segments(table: bytes) -> list[tuple[int, int]]:
    """Return the (offset, length) of a sparse map that are in use; the file's end is one of length 0."""
    found = []
    for begin in range(0, len(table), _SEGMENT_BYTES):
        if not any(entry := table[begin : begin + _SEGMENT_BYTES]):
            break
        found.append((_number(entry[:_PLACE_BYTES]), _number(entry[_PLACE_BYTES:])))
    return [(offset, length) for offset, length in found if length]


def _number(field: bytes) -> int:
    """Return a number: octal digits, or, if the first bit is set, big endian."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    if not (text := field.strip(b" \0")):
        return 0
    if not all(0x30 <= each <= 0x37 for each in text):
        raise ValueError("a number is damaged")
    return int(text, 8)


def _text(field: bytes) -> str:
    try:
        return field.partition(b"\0")[0].decode()
    except UnicodeDecodeError as error:
        raise ValueError("a name is damaged") from error


MANIFEST = "archive.json"
_FORMAT = 1
# Higher levels take minutes for 2 % less.
_LEVEL = 9
# What zstd may take for looking back: more than its highest level does without being told to.
_WINDOW_BYTES = 128 << 20
_MOST_MANIFEST_BYTES = 1 << 20
# Of one file, and of all together: holes take no space, but are hashed.
_MOST_BYTES, _MOST_TOTAL_BYTES = 16 << 30, 32 << 30
# What is written whatever the archive's size, and how much more than that; zstd shrinks a layer to a quarter.
_SMALL_BYTES, _MOST_RATIO = 64 << 20, 100
_ZEROS = bytes(1 << 20)
_REMEDY = "copy it again, or run `csd-emu image build`"


class FileFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and SHA-256, in hexadecimal, of one file."""

    size_bytes: int
    sha256: str


class ImageManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The archive's first member.

    Attributes:
        format: of the archive.
        layer: hash of the recipe and builder that the layer was made with.
        files: by path, all files that follow.
    """

    format: int
    layer: str
    files: dict[str, FileFacts]


def write_archive(runner: Runner, layer: Path, target: Path) -> None:
    """Write the layer in folder `layer`, named by its hash, as the file `target`: all of it or nothing.

    Raises:
        EnvironmentUnfit: tar or zstd is missing.
        ImageError: it cannot be written.
    """
    names = [path.relative_to(layer).as_posix() for path in sorted(layer.rglob("*")) if path.is_file()]
    manifest = {"format": _FORMAT, "layer": layer.name, "files": describe_files(layer, names)}
    zstd = f"{find_tool('zstd', 'zstd')} -q -T0 -{_LEVEL}"
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as name:
            partial, manifest_file = Path(name) / "archive", Path(name) / MANIFEST
            manifest_file.write_text(json.dumps(manifest, sort_keys=True), encoding="utf-8")
            command: list[str | Path] = [find_tool("tar", "tar"), "--create", "--format=gnu", "--file", partial]
            command += ["-I", zstd, "--sparse"]
            command += ["--owner=root:0", "--group=root:0", "-C", name, MANIFEST, "-C", layer, *names]
            runner.run(command, f"write {target}", remedy="free some space, or choose another folder")
            with open(partial, "rb") as stream:
                os.fsync(stream.fileno())
            partial.replace(target)
    except OSError as error:
        raise ImageError(f"{target}: cannot be written ({error.strerror}); choose another folder") from error


def read_manifest(runner: Runner, source: Path) -> ImageManifest:
    """Return what the archive `source` says about itself.

    Raises:
        EnvironmentUnfit: zstd is missing.
        ImageError: it is no such archive.
    """
    if not source.is_file():
        raise ImageError(f"{source}: no such file; name one that `csd-emu image export` wrote")
    try:
        with _unpacked(runner, source) as stream:
            manifest = take_manifest(TarStream(stream))
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ImageError(f"{source}: is no archive of an ARM image, or is damaged ({error}); {_REMEDY}") from error
    if manifest.format != _FORMAT:
        raise ImageError(f"{source}: has format {manifest.format}, this csd-emu reads {_FORMAT}; {_REMEDY}")
    return manifest


def take_manifest(archive: TarStream) -> ImageManifest:
    """Return the manifest, which must come first.

    Raises:
        ValueError: it does not, is too large, or names what no layer has.
        msgspec.MsgspecError: it is damaged.
    """
    if (member := archive.next()) is None or member.name != MANIFEST or member.size > _MOST_MANIFEST_BYTES:
        raise ValueError(f"it does not begin with {MANIFEST}")
    content = bytearray(member.size)
    for offset, block in archive.content(member):
        content[offset : offset + len(block)] = block
    manifest = msgspec.json.decode(content, type=ImageManifest)
    for name, facts in manifest.files.items():
        path = PurePosixPath(name)  # written in one way alone
        outside = path.is_absolute() or ".." in path.parts or str(path) != name
        if outside or name in ("", ".", MANIFEST) or "\0" in name:
            raise ValueError(f"it names {name!r}, which lies outside of its folder")
        if not 0 <= facts.size_bytes <= _MOST_BYTES:
            raise ValueError(f"it names {name!r} with {facts.size_bytes} bytes")
    if (total := sum(facts.size_bytes for facts in manifest.files.values())) > _MOST_TOTAL_BYTES:
        raise ValueError(f"it names {total} bytes in all, more than {_MOST_TOTAL_BYTES}")
    return manifest


def unpack_archive(runner: Runner, source: Path, manifest: ImageManifest, folder: Path) -> None:
    """Unpack the archive `source` into the empty `folder` and check every file against its `manifest`.

    Nothing is written outside of the folder, nor more than the manifest says.

    Raises:
        EnvironmentUnfit: too little space is free.
        ImageError: it is damaged, or the disk is full.
    """
    packed = source.stat().st_size
    # Holes are not counted out: by how much the archive shrinks, nobody can know before.
    check_space(folder, 2 * packed)
    try:
        with _unpacked(runner, source) as stream:
            archive = TarStream(stream)
            if take_manifest(archive) != manifest:
                raise ValueError("it was changed meanwhile")
            unpack_files(archive, manifest, folder, max(_SMALL_BYTES, _MOST_RATIO * packed), runner.check)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ImageError(f"{source}: is damaged ({error}); {_REMEDY}") from error
    except OSError as error:
        raise ImageError(f"cannot unpack {source} ({error.strerror}); free some disk space and run it again") from error


def unpack_files(
    archive: TarStream, manifest: ImageManifest, folder: Path, most_bytes: int, check: Callable[[], None] = lambda: None
) -> None:
    """Write the files that follow the manifest into the empty `folder`; what is 0 throughout stays a hole.

    Args:
        archive: behind its manifest.
        manifest: what it holds.
        folder: where.
        most_bytes: that are written in all.
        check: raises if it is to end.

    Raises:
        ValueError: it holds something else.
        OSError: it cannot be written.
    """
    missing, left = dict(manifest.files), most_bytes
    while (member := archive.next()) is not None:
        if (facts := missing.pop(member.name, None)) is None:
            raise ValueError(f"it holds {member.name!r}, which it does not name, or twice")
        if member.size != facts.size_bytes:
            raise ValueError(f"{member.name} has {member.size} bytes instead of {facts.size_bytes}")
        path = folder / member.name
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, end = hashlib.sha256(), 0
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as file:
            for offset, block in archive.content(member):
                check()
                _add_zeros(digest, offset - end, check)
                digest.update(block)
                end = offset + len(block)
                if block.count(0) != len(block):
                    left -= len(block)
                    if left < 0:
                        raise ValueError(f"it would become more than {most_bytes} bytes")
                    file.seek(offset)
                    file.write(block)
            file.truncate(member.size)
        _add_zeros(digest, member.size - end, check)
        if digest.hexdigest() != facts.sha256:
            raise ValueError(f"{member.name} differs from its sha256")
    if missing:
        raise ValueError(f"{min(missing)} is missing")


def _add_zeros(digest: hashlib._Hash, count: int, check: Callable[[], None]) -> None:
    """Hash a hole; SHA-256 has no shortcut for zeros, so it is the sum of sizes that bounds the time."""
    while count > 0:
        check()
        digest.update(_ZEROS[:count])
        count -= len(_ZEROS)


@contextlib.contextmanager
def _unpacked(runner: Runner, source: Path) -> Iterator[IO[bytes]]:
    """Give the content of `source`, as far as it is read.

    Raises:
        ValueError: zstd could not read it.
    """
    runner.check()
    command: list[str | Path] = [find_tool("zstd", "zstd"), "-q", "-d", "-c", f"--memory={_WINDOW_BYTES}", "--", source]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as zstd:
        try:
            assert zstd.stdout is not None
            yield zstd.stdout
        finally:
            zstd.kill()
