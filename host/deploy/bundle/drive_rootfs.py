"""The root file system of form ``rootfs``: a small Debian in which the agent runs, whatever the drive has."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from csd_emu.image.image_recipe import default_folder
from csd_emu.image.image_rootfs import make_root, unpack_package
from csd_emu.image.runner import Runner
from host.deploy.bundle.bundle_recipe import RootfsRecipe

# Where the Python packages lie in it, as in the image of emulated drives; the control script knows it too.
ROOTFS_SITE = "opt/csd/site"
# Places to mount on.
_PLACES = ("dev", "proc", "sys", "tmp", "run", "root")


def fill_rootfs(runner: Runner, recipe: RootfsRecipe, archives: Sequence[Path], root: Path) -> None:
    """Unpack Debian packages into the empty folder `root`, and add what their scripts would have written.

    Raises:
        ImageError: a package is damaged or the disk is full.
    """
    make_root(root)
    options = [f"--exclude={pattern}" for pattern in recipe.leave_out]
    runner.parallel(lambda archive: unpack_package(runner, archive, root, options), archives, lambda _: None)
    for name in _PLACES:
        (root / name).mkdir(exist_ok=True)
    overlay = default_folder() / "overlay"
    for name in recipe.overlay:
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copyfile(overlay / name, target)
    shell = root / "usr/bin/sh"
    shell.unlink(missing_ok=True)
    shell.symlink_to("dash")
    (root / ROOTFS_SITE).mkdir(parents=True)
