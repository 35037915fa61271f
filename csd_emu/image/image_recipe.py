"""Recipe of an image, the hashes that tell one from another, and a finished image on disk."""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csd_emu.image.wheels import LockedWheels
from csd_emu.util.file_hash import file_sha256
from csd_emu.util.paths import packaged_folder
from firmware_agent.common.atomic_files import replace_file
from firmware_agent.common.errors import ImageError

# Raised whenever the same recipe would give other bytes in the disk or the initramfs.
BUILDER_VERSION = 1
HASH_CHARACTERS = 16


@dataclass(frozen=True)
class ImageRecipe:
    """The recipe folder, read.

    Attributes:
        folder: holds ``recipe.toml``, ``requirements.lock``, ``init``, ``overlay/`` and ``check/``.
        suite: the Debian release of the guest.
        install, without: packages, and packages that apt takes for installed.
        package_leave_out: GNU tar patterns of files that are not unpacked.
        modules: prefixes of the kernel modules that are kept.
        initramfs_modules: modules loaded before the root is mounted, in order.
        command_line: the kernel's.
        enable, mask: systemd units.
        python: version of the guest's Python, ``major.minor``.
        wheels: the Python packages.
        wheel_leave_out: fnmatch patterns of files that are not unpacked.
        build_install, build_without: like `install` and `without`, for a Python that runs on the build machine.
        disk_bytes: size of the root disk as the guest sees it.
        build_bytes: free space that a build from nothing needs.
    """

    folder: Path
    suite: str
    install: tuple[str, ...]
    without: tuple[str, ...]
    package_leave_out: tuple[str, ...]
    modules: tuple[str, ...]
    initramfs_modules: tuple[str, ...]
    command_line: str
    enable: tuple[str, ...]
    mask: tuple[str, ...]
    python: str
    wheels: LockedWheels
    wheel_leave_out: tuple[str, ...]
    build_install: tuple[str, ...]
    build_without: tuple[str, ...]
    disk_bytes: int
    build_bytes: int

    @property
    def overlay(self) -> Path:
        """Files laid over the unpacked packages."""
        return self.folder / "overlay"

    def layer_hash(self) -> str:
        """Return the hash of all that the disk depends on: everything but the agent."""
        lock = self.wheels.lock_file
        more = "" if lock.parent == self.folder else lock.read_text(encoding="utf-8")
        return tree_hash(self.folder, f"builder {BUILDER_VERSION}{more}")

    def image_hash(self, agent: Path) -> str:
        """Return the hash of an image with the agent in folder `agent`."""
        return tree_hash(agent, f"layer {self.layer_hash()}")


def image_folder() -> Path:
    """Return the recipe folder: inside an installed package, or in the source tree."""
    return packaged_folder("csd_emu.image", "recipe_files", "images/arm")


def load_recipe(folder: Path) -> ImageRecipe:
    """Read a recipe.

    Raises:
        ImageError: the file is missing, is no TOML, or lacks a key.
    """
    path = folder / "recipe.toml"
    try:
        return _recipe(folder, tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ImageError(f"{path}: cannot be read ({error}); reinstall csd-emu") from error
    except KeyError as error:
        raise ImageError(f"{path}: the key {error} is missing; reinstall csd-emu") from error


def _recipe(folder: Path, table: dict[str, Any]) -> ImageRecipe:
    debian, kernel, systemd, python, disk = (
        table[section] for section in ("debian", "kernel", "systemd", "python", "disk")
    )
    return ImageRecipe(
        folder=folder,
        suite=debian["suite"],
        install=tuple(debian["install"]),
        without=tuple(debian["without"]),
        package_leave_out=tuple(debian["leave_out"]),
        modules=tuple(kernel["modules"]),
        initramfs_modules=tuple(kernel["initramfs"]),
        command_line=" ".join(kernel["command_line"]),
        enable=tuple(systemd["enable"]),
        mask=tuple(systemd["mask"]),
        python=python["version"],
        wheels=LockedWheels(folder / "requirements.lock", python["version"], tuple(python["platforms"])),
        wheel_leave_out=tuple(python["leave_out"]),
        build_install=tuple(python["build_install"]),
        build_without=tuple(python["build_without"]),
        disk_bytes=disk["size_bytes"],
        build_bytes=disk["build_bytes"],
    )


def source_files(folder: Path) -> Iterator[Path]:
    """Yield the files below `folder`, in an order that does not depend on the machine, without bytecode."""
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)


def copy_sources(folder: Path, target: Path) -> None:
    """Copy the files below `folder`, without bytecode, to the same places below `target`."""
    for source in source_files(folder):
        copy = target / source.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


def tree_hash(folder: Path, salt: str) -> str:
    """Return a hash of names and contents below `folder`; times and modes do not count."""
    digest = hashlib.sha256(salt.encode())
    for path in source_files(folder):
        name, content = path.relative_to(folder).as_posix().encode(), path.read_bytes()
        digest.update(b"%d %d\n" % (len(name), len(content)) + name + content)
    return digest.hexdigest()[:HASH_CHARACTERS]


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
        return {
            name: {"size_bytes": path.stat().st_size, "sha256": digest}
            for (name, path), digest in zip(paths.items(), pool.map(file_sha256, paths.values()), strict=True)
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
