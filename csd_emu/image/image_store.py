"""The ARM images of one user: made once per recipe and agent, shared by all arrays, by one process at a time."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import firmware_agent
from csd_emu.image.boot_check import Bootable, check_boot
from csd_emu.image.extra_packages import lock_packages
from csd_emu.image.image_archive import read_manifest, unpack_archive, write_archive
from csd_emu.image.image_recipe import (
    Image,
    ImageInfo,
    ImageRecipe,
    describe_files,
    image_folder,
    load_recipe,
    read_metadata,
    verify_files,
    write_metadata,
)
from csd_emu.image.initramfs import KeyPair, agent_entries, boot_entries, check_entries, key_entries, write_initramfs
from csd_emu.image.layer import DISK, KERNEL, LayerBuilder, Stages, check_space
from csd_emu.image.runner import Runner
from csd_emu.image.wheels import LOCAL_WHEELS
from csd_emu.util.file_locks import try_lock
from csd_emu.util.progress import Progress
from firmware_agent.common.atomic_files import make_folder, replace_file
from firmware_agent.common.errors import EnvironmentUnfit, ImageError

_LOCK_POLL_SECONDS = 0.2
_IMAGE_BYTES = 50_000_000
_LAYERS = ".layers"
_PARTIAL = ".build-"


class ImageStore:
    """A folder of images, each named by its hash; images with one recipe share their disk by hard link."""

    def __init__(
        self,
        folder: Path,
        *,
        downloads: Path | None = None,
        agent: Path | None = None,
        cancelled: threading.Event | None = None,
        builder: LayerBuilder | None = None,
        boot: Callable[[Bootable, threading.Event], dict[str, Any]] = check_boot,
        packages: Sequence[str] = (),
    ) -> None:
        """Keep images in `folder`, which is made when it is needed.

        Args:
            folder: the store.
            downloads: packages and wheels, kept between builds; by default ``downloads`` beside `folder`.
            agent: the package ``firmware_agent``, by default the installed one.
            cancelled: when set, from any thread, a build ends with `ImageError` and leaves nothing half-made.
            builder: makes layers; by default a `LayerBuilder` of the recipe.
            boot: checks an image by booting it and returns its report, or raises `ImageError`.
            packages: Python packages that images have beside the recipe's; found when an image is first asked for.
        """
        self._folder = folder.absolute()
        self._agent = agent or Path(firmware_agent.__file__).parent
        self._cancelled = cancelled or threading.Event()
        self._runner = Runner(self._cancelled)
        self._downloads = (downloads or self._folder.parent / "downloads").absolute()
        self._given, self._boot, self._packages = builder, boot, packages

    @cached_property
    def _recipe(self) -> ImageRecipe:
        recipe = load_recipe(image_folder())
        return replace(recipe, wheels=lock_packages(recipe.wheels, self._packages, self._downloads))

    @cached_property
    def _builder(self) -> LayerBuilder:
        return self._given or LayerBuilder(self._recipe, self._downloads, (LOCAL_WHEELS,), self._runner)

    def ensure(self, progress: Progress, *, rebuild: bool = False, refresh: bool = False) -> Image:
        """Return the image of this recipe and agent; make it if it is not there.

        A first build boots the image once to check it. A changed agent gives a new image in about a second, with its
        sources compiled but without another boot: the disk is the checked one.

        Args:
            progress: is told of every stage.
            rebuild: throw away the image and its layer first.
            refresh: with a new layer, ask the mirror for newer packages.

        Raises:
            EnvironmentUnfit: a tool, disk space or Debian's keyring is missing.
            ImageError: a download or the build failed, the check boot failed, or the stored image is damaged.
        """
        if (image := self.describe()).directory.is_dir() and not rebuild:
            self.verify(image)
            return image
        with self._locked(progress):
            self._sweep()
            if rebuild:
                _remove_folder(image.directory)
                _remove_folder(self._layer)
            if not image.directory.is_dir():
                self._build(image, Stages(progress), refresh=refresh)
        self.verify(image)
        return image

    def write(self, target: Path) -> None:
        """Write the disk, the kernel and what else images of this recipe share as one file, without any key.

        Raises:
            EnvironmentUnfit: a tool or disk space is missing.
            ImageError: there is no checked image of this version, it is damaged, or `target` cannot be written.
        """
        if not (layer := self._layer).is_dir() or read_metadata(layer)["checked"] is None:
            raise ImageError("there is no image of this version yet; run `csd-emu image build`")
        with self._locked(None):
            verify_files(layer, contents=True)
            write_archive(self._runner, layer, target.absolute())

    def read(self, source: Path, progress: Progress) -> Image:
        """Return the image of this recipe and agent; if it is not there, make it from a file that `write` made.

        Keys are new, the agent is this csd-emu's own. A refused file changes nothing.

        Raises:
            EnvironmentUnfit: a tool or disk space is missing.
            ImageError: the file is damaged or was made for another recipe.
        """
        manifest = read_manifest(self._runner, source)
        layer = self._layer
        if manifest.layer != layer.name:
            raise ImageError(
                f"{source}: was made by another version of csd-emu (layer {manifest.layer}, this one needs "
                f"{layer.name}); run `csd-emu image build`"
            )
        with self._locked(progress):
            self._sweep()
            if not layer.is_dir():
                progress.stage(f"unpack {source.name}")
                with self._partial() as partial:
                    unpack_archive(self._runner, source, manifest, partial)
                    layer.parent.mkdir(exist_ok=True)
                    partial.rename(layer)
        return self.ensure(progress)

    def images(self) -> list[ImageInfo]:
        """Return the images, newest first; folders whose metadata cannot be read are left out."""
        found = []
        for directory in self._directories():
            with suppress(ImageError, KeyError):
                found.append(_info(directory))
        return sorted(found, key=lambda info: info.created, reverse=True)

    def prune(self, keep: set[str]) -> list[str]:
        """Remove images whose hash is not in `keep`, layers that no image uses any more, and leftovers of builds.

        Returns:
            the hashes of the images removed.
        """
        if not self._folder.is_dir():
            return []
        with self._locked(None):
            self._sweep()
            gone = [directory for directory in self._directories() if directory.name not in keep]
            for directory in gone:
                _remove_folder(directory)
            used = {info.layer for info in self.images()}
            for layer in self._folder.glob(f"{_LAYERS}/*"):
                if layer.name not in used:
                    _remove_folder(layer)
        return [directory.name for directory in gone]

    def verify(self, image: Image, *, contents: bool = False) -> None:
        """Check that an image is whole: the sizes of its files, and with `contents` their SHA-256 (seconds).

        Raises:
            ImageError: names the file that is missing or damaged.
        """
        verify_files(image.directory, contents=contents)

    def describe(self) -> Image:
        """Return the image of this recipe and agent, whether it is there or not."""
        image_hash = self._recipe.image_hash(self._agent)
        return Image(image_hash, self._folder / image_hash, self._recipe.command_line)

    @property
    def key(self) -> str:
        """Hash of all that an exported image depends on: it fits any agent of the same recipe."""
        return self._recipe.layer_hash()

    @property
    def _layer(self) -> Path:
        return self._folder / _LAYERS / self.key

    def _build(self, image: Image, stages: Stages, *, refresh: bool) -> None:
        layer = self._layer
        new_layer = not layer.is_dir()
        if new_layer:
            self._build_layer(layer, stages, refresh=refresh)
        else:
            verify_files(layer, contents=False)
        check_space(self._folder, _IMAGE_BYTES)
        with self._partial() as partial:
            self._fill(partial, layer, stages)
            write_metadata(partial, self._metadata(image, partial, layer, stages, new_layer=new_layer))
            partial.rename(image.directory)

    def _build_layer(self, layer: Path, stages: Stages, *, refresh: bool) -> None:
        check_space(self._folder, self._recipe.build_bytes)
        inputs = self._builder.fetch(stages, refresh=refresh)
        layer.parent.mkdir(exist_ok=True)
        with self._partial() as partial:
            metadata = self._builder.build(partial, inputs, stages)
            # The digests follow with the check: both take seconds, of different cores.
            files = {name: {"size_bytes": (partial / name).stat().st_size} for name in (DISK, KERNEL)}
            write_metadata(partial, metadata | {"files": files, "checked": None})
            partial.rename(layer)

    def _fill(self, partial: Path, layer: Path, stages: Stages) -> None:
        python = self._builder.python(stages)
        with stages.build("agent", "add the agent"):
            for name in (DISK, KERNEL):
                _link_or_copy(layer / name, partial / name)
            login = KeyPair.make()
            replace_file(partial / "ssh_key", login.private, 0o600)
            (partial / "ssh_key.pub").write_bytes(login.public)
            entries = [
                *boot_entries(self._recipe, layer),
                *key_entries(login, KeyPair.make()),
                *agent_entries(self._runner, python, self._agent),
            ]
            write_initramfs(partial / "initrd.img", entries)
        if read_metadata(layer)["checked"] is None:
            write_initramfs(partial / "check.img", [*entries, *check_entries(self._recipe)])
            with stages.build("check", "boot it once to check it"):
                self._check(partial, layer)
            (partial / "check.img").unlink()

    def _check(self, partial: Path, layer: Path) -> None:
        bootable = Bootable(partial / DISK, partial / KERNEL, partial / "check.img", self._recipe.command_line)
        with ThreadPoolExecutor(1) as pool:
            files = pool.submit(describe_files, layer, (DISK, KERNEL))
            report = self._boot(bootable, self._cancelled)
        write_metadata(layer, read_metadata(layer) | {"files": files.result(), "checked": report})

    def _metadata(self, image: Image, partial: Path, layer: Path, stages: Stages, *, new_layer: bool) -> dict[str, Any]:
        shared = read_metadata(layer)
        return shared | {
            "hash": image.hash,
            "layer": layer.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "cmdline": self._recipe.command_line,
            "files": shared["files"] | describe_files(partial, ("initrd.img", "ssh_key", "ssh_key.pub")),
            "from_nothing": new_layer,
            "stage_seconds": stages.build_seconds,
            "download_seconds": stages.download_seconds,
            "build_seconds": round(sum(stages.build_seconds.values()), 3),
        }

    def _directories(self) -> Iterator[Path]:
        paths = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        return (path for path in paths if path.is_dir() and not path.name.startswith("."))

    def _sweep(self) -> None:
        """Remove what killed builds left; only under the lock, so that none of them is running."""
        for path in self._folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _partial(self) -> Iterator[Path]:
        """Make a folder beside the images that goes away unless it is renamed."""
        partial = Path(tempfile.mkdtemp(dir=self._folder, prefix=_PARTIAL))
        partial.chmod(0o755)
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    @contextmanager
    def _locked(self, progress: Progress | None) -> Iterator[None]:
        """Hold the store's lock: one process builds or prunes, the others wait and then find its work.

        Raises:
            EnvironmentUnfit: a file or folder of the store cannot be used, also inside the block.
        """
        try:
            make_folder(self._folder, 0o755)
            with (self._folder / ".lock").open("a") as lock:
                waited = False
                while not try_lock(lock.fileno()):
                    if progress is not None and not waited:
                        progress.stage("wait for another image build")
                    waited = True
                    self._cancelled.wait(_LOCK_POLL_SECONDS)
                    self._runner.check()
                yield
        except OSError as error:
            raise _explained(error, self._folder) from error


def _info(directory: Path) -> ImageInfo:
    metadata = read_metadata(directory)
    size = sum(path.stat().st_blocks * 512 for path in directory.iterdir())
    created, seconds = str(metadata["created"]), float(metadata["build_seconds"])
    return ImageInfo(directory.name, str(metadata["layer"]), created, size, seconds)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _remove_folder(folder: Path) -> None:
    """Remove a folder; it is renamed first, so that a killed process leaves no half of an image."""
    if folder.is_dir():
        store = folder.parent.parent if folder.parent.name == _LAYERS else folder.parent
        doomed = store / f"{_PARTIAL}removed-{folder.name}"
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)


def _explained(error: OSError, folder: Path) -> EnvironmentUnfit:
    place = error.filename or folder
    if error.errno == errno.ENOSPC:
        return EnvironmentUnfit(f"{place}: no space left for the ARM image; free some, or set CSD_EMU_HOME elsewhere")
    remedy = f"check the permissions of {folder}, or set CSD_EMU_HOME elsewhere"
    return ImageError(f"{place}: {error.strerror or error}; {remedy}")
