"""Short alias of a folder, because the path of a Unix socket is limited to 107 bytes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from firmware_agent.common.errors import EnvironmentUnfit

# Sticky: nobody else can replace a link there, and whose it is is looked at.
_FOLDER = Path("/tmp")


def shorten(folder: Path, most: int) -> Path:
    """Return the folder, or a link to it in ``/tmp`` if its path has more than `most` bytes.

    The link is made if it is missing, and always the same one for the same user and folder.

    Raises:
        EnvironmentUnfit: something else has the link's name.
    """
    if len(os.fsencode(folder)) <= most:
        return folder
    link = _link(folder)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(folder)
    if not (link.is_symlink() and link.lstat().st_uid == os.geteuid() and link.readlink() == folder):
        raise EnvironmentUnfit(
            f"{folder} is too long for a socket, and {link}, which should be a link to it, is something else; "
            "remove it, or set CSD_EMU_HOME to a shorter path"
        )
    return link


def forget(folder: Path) -> None:
    """Remove what `shorten` has made for the folder, if anything."""
    link = _link(folder)
    with contextlib.suppress(OSError):
        if link.is_symlink() and link.readlink() == folder:
            link.unlink()


def _link(folder: Path) -> Path:
    return _FOLDER / f"csd-emu-{os.geteuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"
