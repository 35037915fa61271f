"""Images with masks, for segmentation: ``images/NAME.png`` and ``masks/NAME.png``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from firmware_agent.common.datafiles.image_folder import SUFFIXES, ImageFiles, open_image
from firmware_agent.common.datafiles.record_set import IMAGE, RecordSet, RecordSource
from firmware_agent.common.errors import DataError

MASK = "target"
"""Field of a mask: (height, width) uint8, the class number of each pixel."""
_FOLDERS = ("images", "masks")
# Modes of Pillow's whose pixels are class numbers; a palette's are its places.
_MODES, _WHITE = ("L", "P", "1"), 255


def open_masks(path: Path) -> RecordSource | None:
    """Return the images of a folder with their masks; None if it has no folders ``images`` and ``masks``.

    It may have these in ``train`` and ``test`` (or ``val``). Masks of 0 and 255 alone are of classes 0 and 1.

    Raises:
        DataError: an image has no mask of its name and size, or the other way round, or a mask is in colour.
    """
    parts = [
        part
        for name in (".", "train", "test", "val")
        if (part := path / name).is_dir() and {each.name for each in part.iterdir() if each.is_dir()} == set(_FOLDERS)
    ]
    if not parts or parts[0].name in ("test", "val"):
        return None
    return RecordSource("images with masks", *map(_read, parts[:2]))


def _read(path: Path) -> RecordSet:
    images, masks = (_named(path / name) for name in _FOLDERS)
    if alone := sorted(images.keys() ^ masks.keys()):
        raise DataError(f"{(images | masks)[alone[0]]}: is in one of images and masks alone; add the other")
    if not images:
        raise DataError(f"{path}: images has none ({', '.join(sorted(SUFFIXES))}); put some there")
    column = ImageFiles(list(images.values()))
    pixels = np.empty((len(masks), *column.shape[2:]), np.uint8)
    for place, stem in enumerate(images):
        pixels[place] = _decode(masks[stem], column.shape[2:])
    if not np.any((pixels > 0) & (pixels < _WHITE)):
        pixels //= _WHITE
    return RecordSet({IMAGE: column, MASK: pixels}, (*images.values(), *masks.values()))


def _named(folder: Path) -> dict[str, Path]:
    files = sorted(each for each in folder.iterdir() if each.suffix.lower() in SUFFIXES and each.is_file())
    if len(named := {each.stem: each for each in files}) < len(files):
        raise DataError(f"{folder}: two images have one name but for the ending; leave one out")
    return named


def _decode(file: Path, size: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    with open_image(file) as image:
        found = (image.height, image.width)
        if image.mode not in _MODES or found != size:
            raise DataError(
                f"{file}: is a mask of mode {image.mode} and size {list(found)}, its image of {list(size)}; keep class "
                "numbers, as 8-bit grey or a palette, of one size with the images"
            )
        try:
            return np.asarray(image).astype(np.uint8)
        except Exception as error:  # a decoder of Pillow's may raise anything
            raise DataError(f"{file}: cannot be decoded ({error}); replace it or leave it out") from error
