"""Recipe of bundles for real drives."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csd_emu.image.wheels import LockedWheels
from csd_emu.util.paths import packaged_folder
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.deploy.compatibility import Form

# Of the root file system that we bring.
ROOTFS_PYTHON = "3.11"


@dataclass(frozen=True)
class Variant:
    """One of the bundles that there can be.

    Attributes:
        form: how the agent is installed.
        python: version of the Python that runs it, ``major.minor``.
    """

    form: Form
    python: str


@dataclass(frozen=True)
class WheelChoice:
    """What a probe chose for a drive.

    Attributes:
        variant: of the bundle.
        interpreter: path of the drive's own Python, "" for form ``rootfs``.
    """

    variant: Variant
    interpreter: str


@dataclass(frozen=True)
class RootfsRecipe:
    """What the root file system is made of.

    Attributes:
        suite: the Debian release.
        install, without: packages, and packages that apt takes for installed.
        leave_out: GNU tar patterns of files that are not unpacked.
        overlay: files of the emulated drives' image that are laid over.
    """

    suite: str
    install: tuple[str, ...]
    without: tuple[str, ...]
    leave_out: tuple[str, ...]
    overlay: tuple[str, ...]


@dataclass(frozen=True)
class DriveRecipe:
    """The folder ``images/drive``, read.

    Attributes:
        folder: holds ``recipe.toml``, the lock files, the control script, its unit and its init script.
        pythons: versions that form ``wheels`` exists for.
        platforms: wheel platform tags, best first.
        leave_out: fnmatch patterns of files of a wheel that are not unpacked.
        uncompiled: fnmatch patterns of sources that come without bytecode.
        part_bytes: size of a part, unpacked.
        rootfs: the root file system.
    """

    folder: Path
    pythons: tuple[str, ...]
    platforms: tuple[str, ...]
    leave_out: tuple[str, ...]
    uncompiled: tuple[str, ...]
    part_bytes: int
    rootfs: RootfsRecipe

    def wheels(self, python: str) -> LockedWheels:
        """Return which wheels a drive with this Python gets.

        Raises:
            ConfigurationError: there is no lock file for it.
        """
        if python not in self.pythons:
            raise ConfigurationError(f"Python {python}: there are wheels for {', '.join(self.pythons)} only")
        return LockedWheels(self.folder / f"requirements-{python}.lock", python, self.platforms)


def default_folder() -> Path:
    """Return the recipe folder: inside an installed package, or in the source tree."""
    return packaged_folder("host.deploy", "drive_files", "images/drive")


def load_recipe(folder: Path) -> DriveRecipe:
    """Read the recipe.

    Raises:
        EnvironmentUnfit: the file is missing, is no TOML, or lacks a key.
    """
    path = folder / "recipe.toml"
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        wheels, parts, rootfs = table["wheels"], table["parts"], table["rootfs"]
        return DriveRecipe(
            folder=folder,
            pythons=tuple(wheels["python"]),
            platforms=tuple(wheels["platforms"]),
            leave_out=tuple(wheels["leave_out"]),
            uncompiled=tuple(wheels["uncompiled"]),
            part_bytes=parts["unpacked_bytes"],
            rootfs=RootfsRecipe(
                suite=rootfs["suite"],
                install=tuple(rootfs["install"]),
                without=tuple(rootfs["without"]),
                leave_out=tuple(rootfs["leave_out"]),
                overlay=tuple(rootfs["overlay"]),
            ),
        )
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise EnvironmentUnfit(f"{path}: cannot be read ({error!r}); reinstall csd-emu") from error
