"""Files that images of one recipe share: the root disk, the kernel, and the parts of an initramfs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csd_emu.image.image_recipe import ImageRecipe
from csd_emu.image.image_rootfs import (
    SITE,
    BuildPython,
    PythonCache,
    compile_tree,
    complete_root,
    find_python,
    kernel_options,
    make_disk,
    make_root,
    take_kernel,
    unpack_package,
)
from csd_emu.image.packages import GUEST_ARCHITECTURE, Package, PackageCache, machine_architecture
from csd_emu.image.runner import Runner
from csd_emu.image.wheels import WheelCache, unpack_wheel
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import EnvironmentUnfit


class Stages:
    """Announces stages and measures them."""

    def __init__(self, progress: Progress, now: Callable[[], float] = time.monotonic) -> None:
        """Show stages on `progress`; `now` returns monotonic seconds."""
        self.progress = progress
        self.build_seconds: dict[str, float] = {}
        self.download_seconds: dict[str, float] = {}
        self._now = now

    @contextmanager
    def build(self, name: str, text: str) -> Iterator[None]:
        """Measure a stage of the build proper; `name` is its key in `build_seconds`."""
        yield from self._stage(self.build_seconds, name, text)

    @contextmanager
    def download(self, name: str, text: str) -> Iterator[None]:
        """Measure a stage that waits for the network; `name` is its key in `download_seconds`."""
        yield from self._stage(self.download_seconds, name, text)

    def _stage(self, seconds: dict[str, float], name: str, text: str) -> Iterator[None]:
        self.progress.stage(text)
        start = self._now()
        yield
        seconds[name] = round(self._now() - start, 3)


DISK = "disk.img"
KERNEL = "vmlinuz"
_COMPILED = (SITE, "usr/lib/python3", "usr/lib/python3.11")


@dataclass(frozen=True)
class Inputs:
    """What was downloaded: Debian packages and Python wheels."""

    archives: Path
    packages: list[Package]
    wheels: list[Path]


class LayerBuilder:
    """Makes layers of one recipe, keeping downloads in a folder."""

    def __init__(self, recipe: ImageRecipe, downloads: Path, wheels: tuple[Path, ...], runner: Runner) -> None:
        """Use `downloads` as the cache and the folders `wheels` before any package index."""
        self._recipe, self._runner = recipe, runner
        self._guest = PackageCache(downloads, recipe.suite, GUEST_ARCHITECTURE, runner)
        self._wheels = WheelCache(downloads / "wheels", wheels, recipe.wheels, runner)
        own = PackageCache(downloads, recipe.suite, machine_architecture(), runner)
        self._python = PythonCache(downloads, own, recipe, runner)
        self._found: BuildPython | None = None

    def fetch(self, stages: Stages, *, refresh: bool = False) -> Inputs:
        """Download what a layer is made of; raises `EnvironmentUnfit` or `ImageError`."""
        recipe = self._recipe
        with stages.download("packages", f"download Debian {recipe.suite} packages for {GUEST_ARCHITECTURE}"):
            packages = self._guest.fetch(recipe.install, recipe.without, stages.progress.advance, refresh=refresh)
        with stages.download("wheels", "download Python wheels for aarch64"):
            wheels = self._wheels.fetch(stages.progress.advance)
        self.python(stages)
        return Inputs(self._guest.archives, packages, wheels)

    def python(self, stages: Stages) -> BuildPython:
        """Return a Python of the guest's version that runs here: one installed, else Debian's."""
        self._found = self._found or find_python(self._recipe.python)
        if self._found is None:
            with stages.download("python", f"download Python {self._recipe.python} for this machine"):
                archives = self._python.fetch()
            with stages.build("python", f"unpack Python {self._recipe.python} for this machine"):
                self._found = self._python.unpack(archives)
        return self._found

    def build(self, target: Path, inputs: Inputs, stages: Stages) -> dict[str, Any]:
        """Make the layer in the empty folder `target` and return its metadata.

        Raises:
            EnvironmentUnfit: a tool is missing or the disk is too small.
            ImageError: anything else went wrong.
        """
        root = target / "root"
        make_root(root)
        with stages.build("unpack", f"unpack {len(inputs.packages)} packages and {len(inputs.wheels)} wheels"):
            self._unpack(root, inputs, stages)
        with stages.build("complete", "add configuration, units and kernel modules"):
            release = complete_root(self._runner, self._recipe, root)
            take_kernel(self._recipe, root, release, target)
        with stages.build("compile", "compile Python sources"):
            compile_tree(self._runner, self.python(stages), root, _COMPILED, strict=False)
        with stages.build("disk", "fill the root disk"):
            make_disk(self._runner, root, target / DISK, self._recipe.disk_bytes)
            shutil.rmtree(root)
        return {
            "kernel_release": release,
            "packages": sorted(package.label for package in inputs.packages),
            "wheels": sorted(wheel.name for wheel in inputs.wheels),
        }

    def _unpack(self, root: Path, inputs: Inputs, stages: Stages) -> None:
        files = [*(inputs.archives / package.file for package in inputs.packages), *inputs.wheels]
        # The longest first, so that no core waits at the end.
        files.sort(key=lambda path: path.stat().st_size, reverse=True)
        self._runner.parallel(lambda path: self._unpack_one(root, path), files, stages.progress.advance)

    def _unpack_one(self, root: Path, path: Path) -> None:
        recipe = self._recipe
        if path.suffix == ".whl":
            unpack_wheel(path, root / SITE, recipe.wheel_leave_out)
        elif path.name.startswith("linux-image-"):
            # The metapackage holds nothing that is wanted, and tar complains about patterns without a match.
            if "-cloud-arm64" in path.name and not path.name.startswith("linux-image-cloud"):
                unpack_package(self._runner, path, root, kernel_options(recipe))
        else:
            unpack_package(self._runner, path, root, [f"--exclude={pattern}" for pattern in recipe.package_leave_out])


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raise `EnvironmentUnfit` if the file system of `folder` has less than `needed_bytes` free."""
    if (free := shutil.disk_usage(folder).free) < needed_bytes:
        raise EnvironmentUnfit(
            f"{folder}: {free / 1e9:.1f} GB free, building an image needs {needed_bytes / 1e9:.1f} GB; "
            "free some space, run `csd-emu image prune`, or set CSD_EMU_HOME to a folder on another disk"
        )
