"""A layer as one file, for machines that should not build it: a tar archive, compressed with zstd.

It holds no key and no agent, so it can be handed on: whoever imports it makes keys of their own, and the agent added is
that of their csd-emu.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from csd_emu.image.arm_image import describe_files
from csd_emu.image.layer import check_space
from csd_emu.image.runner import Runner, find_tool
from csd_emu.image.tar_stream import TarStream
from firmware_agent.common.errors import ImageError

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
    member = archive.next()
    if member is None or member.name != MANIFEST or member.size > _MOST_MANIFEST_BYTES:
        raise ValueError(f"it does not begin with {MANIFEST}")
    content = bytearray(member.size)
    for offset, block in archive.content(member):
        content[offset : offset + len(block)] = block
    manifest = msgspec.json.decode(content, type=ImageManifest)
    for name, facts in manifest.files.items():
        if not name or name == MANIFEST or PurePosixPath(name).is_absolute() or not _is_plain(name):
            raise ValueError(f"it names {name!r}, which lies outside of its folder")
        if not 0 <= facts.size_bytes <= _MOST_BYTES:
            raise ValueError(f"it names {name!r} with {facts.size_bytes} bytes")
    if (total := sum(facts.size_bytes for facts in manifest.files.values())) > _MOST_TOTAL_BYTES:
        raise ValueError(f"it names {total} bytes in all, more than {_MOST_TOTAL_BYTES}")
    return manifest


def _is_plain(name: str) -> bool:
    return (
        name != "." and str(PurePosixPath(name)) == name and ".." not in PurePosixPath(name).parts and "\0" not in name
    )


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
        facts = missing.pop(member.name, None)
        if facts is None:
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
