"""Images in the cache: what the commands `csd-emu image` print of them, and `csd-emu image prune`."""

from __future__ import annotations

import msgspec

from csd_emu.image import ImageStore
from csd_emu.util.paths import Paths


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


def list_images(paths: Paths) -> ImageReport:
    """Return all images in the cache, newest first."""
    store = ImageStore(paths.images)
    current = store.describe().hash
    return ImageReport(
        [ImageEntry(i.hash, i.size_bytes, i.build_seconds, i.hash == current) for i in store.images()], []
    )


def prune_images(paths: Paths) -> ImageReport:
    """Remove all images and templates but those of this version."""
    from csd_emu.engines.qemu.template import prune_templates  # libvirt: schemas of reports are read without it

    store = ImageStore(paths.images)
    current = store.describe().hash
    removed = [*store.prune({current}), *prune_templates(paths.templates, current)]
    return msgspec.structs.replace(list_images(paths), removed=removed)
