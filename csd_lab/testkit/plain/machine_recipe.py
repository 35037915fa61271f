"""Recipe of a plain machine: one TOML file per machine, and folders of files laid over its packages."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csd_emu.image.image_recipe import HASH_CHARACTERS, tree_hash
from csd_emu.util.paths import packaged_folder
from firmware_agent.common.errors import ConfigurationError, ImageError

# Raised whenever the same recipe would give other bytes.
_BUILDER_VERSION = 3


@dataclass(frozen=True)
class PlainRecipe:
    """One recipe, read.

    Attributes:
        name: of the file.
        folder: holds the recipes, ``init`` and ``overlay/``.
        suite, architecture: of Debian.
        updated: with Debian's later updates, else as it was last released.
        install, without: packages, and packages that apt takes for installed.
        leave_out: GNU tar patterns of files that are not unpacked.
        kernel_package: fnmatch pattern of the package file that holds the kernel.
        initramfs_modules: what is loaded before the root is mounted; what they rest on is found.
        overlays: names of folders laid over the packages, in order.
        links: symbolic links, path -> target.
        ssh_server: ``openssh`` or ``dropbear``.
        enable: systemd units.
    """

    name: str
    folder: Path
    suite: str
    architecture: str
    updated: bool
    install: tuple[str, ...]
    without: tuple[str, ...]
    leave_out: tuple[str, ...]
    kernel_package: str
    initramfs_modules: tuple[str, ...]
    overlays: tuple[str, ...]
    links: Mapping[str, str]
    ssh_server: str
    enable: tuple[str, ...]

    @property
    def overlay_folders(self) -> tuple[Path, ...]:
        """The folders laid over the packages."""
        return tuple(self.folder / "overlay" / name for name in self.overlays)

    @property
    def hash(self) -> str:
        """Of all that the disk depends on."""
        parts = [f"builder {_BUILDER_VERSION}", (self.folder / f"{self.name}.toml").read_text(encoding="utf-8")]
        parts += [(self.folder / "init").read_text(encoding="utf-8")]
        parts += [tree_hash(folder, folder.name) for folder in self.overlay_folders]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:HASH_CHARACTERS]


def plain_folder() -> Path:
    """Return the folder of recipes: inside an installed package, or in the source tree."""
    return packaged_folder("csd_lab.testkit.plain", "recipe_files", "images/targets")


def plain_names(folder: Path | None = None) -> list[str]:
    """Return the names of all recipes."""
    return sorted(path.stem for path in (folder or plain_folder()).glob("*.toml"))


def load_plain_recipe(name: str, folder: Path | None = None) -> PlainRecipe:
    """Read one recipe.

    Raises:
        ConfigurationError: there is none of this name.
        ImageError: the file is no TOML, or lacks a key.
    """
    folder = folder or plain_folder()
    if name not in plain_names(folder):
        raise ConfigurationError(
            f"plain machine {name!r} is not known; choose one of: {', '.join(plain_names(folder))}"
        )
    path = folder / f"{name}.toml"
    try:
        return _recipe(name, folder, tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ImageError(f"{path}: cannot be read ({error}); reinstall csd-emu") from error
    except KeyError as error:
        raise ImageError(f"{path}: the key {error} is missing; reinstall csd-emu") from error


def _recipe(name: str, folder: Path, table: Mapping[str, Any]) -> PlainRecipe:
    debian, kernel, root = table["debian"], table["kernel"], table["root"]
    return PlainRecipe(
        name=name,
        folder=folder,
        suite=debian["suite"],
        architecture=debian["architecture"],
        updated=debian.get("updated", True),
        install=tuple(debian["install"]),
        without=tuple(debian["without"]),
        leave_out=tuple(debian["leave_out"]),
        kernel_package=kernel["package"],
        initramfs_modules=tuple(kernel["initramfs"]),
        overlays=tuple(root["overlays"]),
        links=root.get("links", {}),
        ssh_server=root["ssh_server"],
        enable=tuple(table.get("systemd", {}).get("enable", ())),
    )
