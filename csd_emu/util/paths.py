"""Folders of csd-emu's files: one place that decides, so that tests and users can move all of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import platformdirs

HOME_VARIABLE = "CSD_EMU_HOME"


@dataclass(frozen=True)
class Paths:
    """The folders of one user of csd-emu.

    Attributes:
        cache: what can be made again: downloads, ARM images, templates.
        state: one folder per array that is up; the user's profiles and calibration tables.
        runtime: sockets; short, because a Unix socket's path holds 107 bytes.
    """

    cache: Path
    state: Path
    runtime: Path

    @classmethod
    def default(cls) -> Paths:
        """Return the folders: under ``$CSD_EMU_HOME`` if set, the system's for root, else the user's own.

        Root does not use its home folder: QEMU runs as an unprivileged user that could not enter it.
        """
        if home := os.environ.get(HOME_VARIABLE):
            root = Path(home).expanduser().resolve()
            return cls(root / "cache", root / "state", root / "run")
        if os.geteuid() == 0:
            return cls(Path("/var/cache/csd-emu"), Path("/var/lib/csd-emu"), Path("/run/csd-emu"))
        dirs = platformdirs.PlatformDirs("csd-emu", appauthor=False)
        cache, session = Path(dirs.user_cache_dir), os.environ.get("XDG_RUNTIME_DIR", "")
        runtime = Path(session) / "csd-emu" if session and Path(session).is_dir() else cache / "run"
        return cls(cache, Path(dirs.user_state_dir), runtime)

    @property
    def arrays(self) -> Path:
        """One folder per array that is up."""
        return self.state / "arrays"

    def control(self, array: str) -> Path:
        """Return the socket on which a run on this array takes faults."""
        return self.runtime / f"{array}.control"

    def presence(self, array: str) -> Path:
        """Return the file that whoever keeps an array up in the foreground holds locked."""
        return self.runtime / f"{array}.present"

    @property
    def profiles(self) -> Path:
        """The user's own profiles of drives and hosts, one YAML file each."""
        return self.state / "profiles"

    @property
    def calibration(self) -> Path:
        """The user's own calibration tables; they go before those that ship with the package."""
        return self.state / "calibration"

    @property
    def images(self) -> Path:
        """The ARM images."""
        return self.cache / "images"

    @property
    def cycles(self) -> Path:
        """The core model, built as a plugin of this machine's QEMU."""
        return self.cache / "cycles"

    @property
    def templates(self) -> Path:
        """The booted machines that clones are made of."""
        return self.cache / "templates"


ROOT = Path(__file__).parents[2]


def packaged_folder(package: str, installed: str, in_clone: str) -> Path:
    """Return the folder `installed` of a package, or, in a clone, `in_clone` below the repository's root."""
    folder = Path(str(resources.files(package))) / installed
    return folder if folder.is_dir() else ROOT / in_clone
