"""A layer as one file, for machines that shall not build it: a tar archive, compressed by zstd.

It holds no key and no agent, so it can be handed on: whoever imports it makes keys of their own, and the agent added is
that of their csd-emu.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import msgspec

from csd_emu.image.image import describe_files
from csd_emu.image.layer import check_space
from csd_emu.image.runner import Runner, find_tool
from firmware_agent.errors import ImageError

MANIFEST = "archive.json"
_FORMAT = 1
# Higher levels take minutes for 2 % less.
_LEVEL = 9
_REMEDY = "copy it again, or run `csd-emu image build`"


class FileFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and SHA-256, in hexadecimal, of one file."""

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
            command: list[str | Path] = [find_tool("tar", "tar"), "--create", "--file", partial, "-I", zstd, "--sparse"]
            command += ["--owner=root:0", "--group=root:0", "-C", name, MANIFEST, "-C", layer, *names]
            runner.run(command, f"write {target}", remedy="free some space, or choose another folder")
            partial.replace(target)
    except OSError as error:
        raise ImageError(f"{target}: cannot be written ({error.strerror}); choose another folder") from error


def read_manifest(runner: Runner, source: Path) -> Manifest:
    """Return what the archive `source` says about itself.

    Raises:
        EnvironmentUnfit: tar or zstd is missing.
        ImageError: it is no such archive.
    """
    if not source.is_file():
        raise ImageError(f"{source}: no such file; name one that `csd-emu image export` wrote")
    try:
        text = runner.run([*_reading(source), "--to-stdout", "--occurrence=1", "--extract", MANIFEST], "read it")
        manifest = msgspec.json.decode(text, type=Manifest)
    except (ImageError, msgspec.DecodeError) as error:
        runner.check()
        raise ImageError(f"{source}: is no archive of an ARM image, or is damaged; {_REMEDY}") from error
    if manifest.format != _FORMAT:
        raise ImageError(f"{source}: has format {manifest.format}, this csd-emu reads {_FORMAT}; {_REMEDY}")
    return manifest


def unpack_archive(runner: Runner, source: Path, manifest: Manifest, folder: Path) -> None:
    """Unpack the archive `source` into the empty `folder` and check every file against its `manifest`.

    Raises:
        EnvironmentUnfit: too little space is free.
        ImageError: it is damaged, or the disk is full.
    """
    # Holes are not counted out: by how much the archive shrinks, nobody can know before.
    check_space(folder, 2 * source.stat().st_size)
    options = ("--extract", "--no-same-owner", "--no-same-permissions", "-C", folder)
    runner.run([*_reading(source), *options], f"unpack {source}", remedy=_REMEDY)
    (folder / MANIFEST).unlink()
    members = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    found = {path.relative_to(folder).as_posix() for path in members}
    if found != manifest.files.keys() or any(path.is_symlink() or not path.is_file() for path in members):
        raise ImageError(f"{source}: does not hold the files that it names; {_REMEDY}")
    facts = msgspec.convert(describe_files(folder, manifest.files), dict[str, FileFacts])
    if damaged := sorted(name for name in found if facts[name] != manifest.files[name]):
        raise ImageError(f"{source}: {damaged[0]} in it is damaged (sha256 differs); {_REMEDY}")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _reading(source: Path) -> list[str | Path]:
    return [find_tool("tar", "tar"), "--file", source, "-I", find_tool("zstd", "zstd")]
