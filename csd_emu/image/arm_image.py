"""A finished image on disk: its files, its metadata, and how to tell that it is whole."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csd_emu.util.file_hash import file_sha256
from firmware_agent.common.atomic_files import replace_file
from firmware_agent.common.errors import ImageError

METADATA = "metadata.json"
REBUILD = "run `csd-emu image build --rebuild`"


@dataclass(frozen=True)
class Image:
    """An ARM image.

    Attributes:
        hash: of the recipe, the builder and the agent.
        directory: holds the files.
        cmdline: the kernel arguments that the image is made for.
    """

    hash: str
    directory: Path
    cmdline: str

    @property
    def disk(self) -> Path:
        """The raw root disk; never written to: boot an overlay of it."""
        return self.directory / "disk.img"

    @property
    def kernel(self) -> Path:
        """The kernel."""
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """The initramfs, which carries the agent and the keys."""
        return self.directory / "initrd.img"

    @property
    def ssh_key(self) -> Path:
        """The private key that may log in as root."""
        return self.directory / "ssh_key"

    @property
    def metadata(self) -> dict[str, Any]:
        """What was built, from what, and how long it took.

        Raises:
            ImageError: the file is missing or damaged.
        """
        return read_metadata(self.directory)


@dataclass(frozen=True)
class ImageInfo:
    """One line of a list of images.

    Attributes:
        hash: as in `Image`.
        layer: hash of the part that images with the same recipe share.
        created: date and time, UTC, ISO 8601.
        size_bytes: space that its files take, shared ones included.
        build_seconds: what making it took, downloads excluded.
    """

    hash: str
    layer: str
    created: str
    size_bytes: int
    build_seconds: float


def read_metadata(folder: Path) -> dict[str, Any]:
    """Return the metadata of an image or layer.

    Raises:
        ImageError: the file is missing or damaged.
    """
    path = folder / METADATA
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ImageError(f"{path}: cannot be read ({error}); {REBUILD}") from error
    return found


def write_metadata(folder: Path, content: dict[str, Any]) -> None:
    """Write the metadata of an image or layer, all of it or nothing."""
    replace_file(folder / METADATA, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of the named files."""
    paths = {name: folder / name for name in names}
    with ThreadPoolExecutor() as pool:
        digests = pool.map(file_sha256, paths.values())
        return {
            name: {"size_bytes": path.stat().st_size, "sha256": digest}
            for (name, path), digest in zip(paths.items(), digests, strict=True)
        }


def verify_files(folder: Path, *, contents: bool) -> None:
    """Compare the files of an image or layer with its metadata: sizes, and with `contents` their SHA-256 too.

    Raises:
        ImageError: a file is missing or differs.
    """
    for name, expected in read_metadata(folder)["files"].items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise ImageError(f"{path}: missing; {REBUILD}")
        if size != expected["size_bytes"]:
            raise ImageError(f"{path}: {size} bytes instead of {expected['size_bytes']}; {REBUILD}")
        if contents and file_sha256(path) != expected["sha256"]:
            raise ImageError(f"{path}: its content is damaged (sha256 differs); {REBUILD}")
