"""Files that lie elsewhere in a clone of the repository than in the installed package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

ROOT = Path(__file__).parents[2]


def packaged_folder(package: str, installed: str, in_clone: str) -> Path:
    """Return the folder `installed` of a package, or, in a clone, `in_clone` below the repository's root."""
    folder = Path(str(resources.files(package))) / installed
    return folder if folder.is_dir() else ROOT / in_clone
