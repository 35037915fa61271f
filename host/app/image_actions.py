"""`csd-emu image build`, `export`, `import`, `list` and `prune`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from csd_emu.image import ImageStore
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress


class ImageEntry(msgspec.Struct, frozen=True):
    """One ARM image in the cache."""

    hash: str
    size_bytes: int
    build_seconds: float
    current: bool


class ImageReport(msgspec.Struct, frozen=True):
    """`csd-emu image build`, `list` and `prune`; `removed` names what prune removed."""

    images: list[ImageEntry]
    removed: list[str]


def build_image(paths: Paths, progress: Progress, rebuild: bool) -> ImageReport:
    """Make the image of this version, unless it is there.

    Raises:
        EnvironmentUnfit: a tool or disk space is missing.
        ImageError: the build failed.
    """
    ImageStore(paths.images).ensure(progress, rebuild=rebuild)
    return list_images(paths)


def export_image(paths: Paths, target: Path) -> ImageReport:
    """Write the image of this version, without its keys and agent, as the file `target`.

    Raises:
        EnvironmentUnfit: a tool or disk space is missing.
        ImageError: there is no image yet, or the file cannot be written.
    """
    ImageStore(paths.images).write(target)
    return list_images(paths)


def import_image(paths: Paths, source: Path, progress: Progress) -> ImageReport:
    """Make the image of this version from a file that `export_image` wrote, unless it is there.

    Raises:
        EnvironmentUnfit: a tool or disk space is missing.
        ImageError: the file is damaged, or belongs to another version.
    """
    ImageStore(paths.images).read(source, progress)
    return list_images(paths)


def list_images(paths: Paths) -> ImageReport:
    """Return all images in the cache, newest first."""
    store = ImageStore(paths.images)
    current = store.describe().hash
    images = [ImageEntry(i.hash, i.size_bytes, i.build_seconds, i.hash == current) for i in store.images()]
    return ImageReport(images, [])


def prune_images(paths: Paths) -> ImageReport:
    """Remove all images and templates but those of this version."""
    from csd_emu.engines.qemu.template import prune_templates  # libvirt: schemas of reports are read without it

    store = ImageStore(paths.images)
    current = store.describe().hash
    removed = [*store.prune({current}), *prune_templates(paths.templates, current)]
    return msgspec.structs.replace(list_images(paths), removed=removed)
