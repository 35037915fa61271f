"""The root disk: an ext4 file system filled from a folder, without mounting anything."""

from __future__ import annotations

import os
from pathlib import Path

from csd_emu.image.runner import Runner, find_tool

_INODES = 32768
# No journal: a drive's root is thrown away, never recovered. No checksums: an emulated core would compute them.
_FEATURES = "^has_journal,^metadata_csum,^resize_inode"


def make_disk(
    runner: Runner, root: Path, disk: Path, size_bytes: int, *, features: str = _FEATURES, inodes: int = _INODES
) -> None:
    """Write a raw, sparse ext4 disk with the content of `root`; every file in it belongs to root.

    Args:
        runner: runs mke2fs.
        root: the content.
        disk: is written.
        size_bytes: of the disk as a machine sees it.
        features: of ext4, as mke2fs takes them.
        inodes: how many files the disk can hold.

    Raises:
        EnvironmentUnfit: mke2fs, or for an ordinary user fakeroot, is missing.
        ImageError: the content does not fit or this machine's disk is full.
    """
    command: list[str | Path] = [
        *(find_tool("mke2fs", "e2fsprogs"), "-q", "-F", "-t", "ext4", "-O", features, "-m", "0", "-N", str(inodes)),
        *("-E", "root_owner=0:0,lazy_itable_init=0", "-L", "csd-root", "-d", root, disk, f"{size_bytes // 1024}k"),
    ]
    if os.geteuid() != 0:
        # It shows mke2fs the builder's own files as root's, which is all that is needed of it.
        command = [find_tool("fakeroot", "fakeroot"), *command]
    runner.run(command, f"fill the root disk {disk}")
