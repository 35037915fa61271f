"""Recipe of an image, and the hashes that tell one image from another."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csd_emu.util.paths import packaged_folder
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
        platforms: wheel platform tags, best first.
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
    platforms: tuple[str, ...]
    wheel_leave_out: tuple[str, ...]
    build_install: tuple[str, ...]
    build_without: tuple[str, ...]
    disk_bytes: int
    build_bytes: int

    @property
    def overlay(self) -> Path:
        """Files laid over the unpacked packages."""
        return self.folder / "overlay"

    @property
    def lock_file(self) -> Path:
        """The Python packages and their hashes."""
        return self.folder / "requirements.lock"

    def layer_hash(self) -> str:
        """Return the hash of all that the disk depends on: everything but the agent."""
        return tree_hash(self.folder, f"builder {BUILDER_VERSION}")

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
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return _recipe(folder, table)
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
        platforms=tuple(python["platforms"]),
        wheel_leave_out=tuple(python["leave_out"]),
        build_install=tuple(python["build_install"]),
        build_without=tuple(python["build_without"]),
        disk_bytes=disk["size_bytes"],
        build_bytes=disk["build_bytes"],
    )


def source_files(folder: Path) -> Iterator[Path]:
    """Yield the files below `folder`, in an order that does not depend on the machine, without bytecode."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def tree_hash(folder: Path, salt: str) -> str:
    """Return a hash of names and contents below `folder`; times and modes do not count."""
    digest = hashlib.sha256(salt.encode())
    for path in source_files(folder):
        name, content = path.relative_to(folder).as_posix().encode(), path.read_bytes()
        digest.update(b"%d %d\n" % (len(name), len(content)) + name + content)
    return digest.hexdigest()[:HASH_CHARACTERS]
