"""Hash of the installed code; servers refuse peers with another."""

from __future__ import annotations

import hashlib
from pathlib import Path

PACKAGES = ("csd_emu", "firmware_agent", "host", "csd_lab")


def code_sha256(root: Path = Path(__file__).parents[3]) -> str:
    """Return the hash of all Python files of csd-emu's packages below `root`, with their paths."""
    digest = hashlib.sha256()
    for path in sorted(file for package in PACKAGES for file in (root / package).rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
