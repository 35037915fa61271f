"""A folder of images with one folder per class; an image is decoded, by Pillow, when it is asked for."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common.datafiles.record_set import RecordSet, RecordSource
from firmware_agent.common.errors import DataError

if TYPE_CHECKING:
    from types import ModuleType

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff"}
# By content: Pillow has others too, and one of them starts a program.
_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP", "TIFF")
_MOST_PIXELS = 1 << 24
# Pillow's modes that are taken as they are; any other becomes colour.
_GREY, _COLOUR = "L", "RGB"


class ImageFiles:
    """The images of some files, decoded whenever they are asked for; all must have the first one's shape."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Look at the header of the first file.

        Raises:
            DataError: Pillow is missing, or the file is no image.
        """
        self._files = list(files)
        self._shape = _shape_of(self._files[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """(samples, channels, height, width)."""
        return (len(self._files), *self._shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Always uint8."""
        return np.dtype(np.uint8)

    @property
    def nbytes(self) -> int:
        """What all of them take in memory, decoded."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        images = np.empty((len(index), *self._shape), np.uint8)
        for place, number in enumerate(np.asarray(index)):
            images[place] = self._decode(self._files[int(number)])
        return images

    def blocks(self) -> Iterator[bytes]:
        """Yield the content of all files as they are; shapes are checked by their headers."""
        for file in self._files:
            if (shape := _shape_of(file)) != self._shape:
                raise DataError(
                    f"{file}: is {_text(shape)}, the first image of the folder {_text(self._shape)}; give all images "
                    "one size and one mode"
                )
            yield file.read_bytes()

    def _decode(self, file: Path) -> npt.NDArray[np.uint8]:
        with open_image(file) as image:
            if (found := _shape(image))[1:] != self._shape[1:]:
                raise DataError(f"{file}: is {_text(found)}, not {_text(self._shape)}; give all images one size")
            try:
                pixels = np.asarray(image.convert(_GREY if self._shape[0] == 1 else _COLOUR))
            except Exception as error:  # a decoder of Pillow's may raise anything
                raise DataError(f"{file}: cannot be decoded ({error}); replace it or leave it out") from error
        shaped = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        if shaped.shape != self._shape:
            raise DataError(f"{file}: is {_text(shaped.shape)}, not {_text(self._shape)}; give all images one size")
        return shaped


def open_folder(path: Path) -> RecordSource | None:
    """Return the images in the folders of `path`, whose names, sorted, are the classes; None if it has no folders.

    Folders that are all called by numbers are those classes. An empty folder is a class without images here.

    Raises:
        DataError: there is no image, Pillow is missing, or the first one is none.
    """
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not folders:
        return None
    numbered = all(folder.name.isascii() and folder.name.isdigit() for folder in folders)
    files: list[Path] = []
    labels: list[int] = []
    for place, folder in enumerate(folders):
        found = sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in SUFFIXES and entry.is_file())
        files += found
        labels += [int(folder.name) if numbered else place] * len(found)
    if not files:
        raise DataError(f"{path}: its folders hold no images ({', '.join(sorted(SUFFIXES))}); put some there")
    if max(labels) > 65_535:
        raise DataError(f"{path}: a folder is called {max(labels)}; class numbers go from 0 to 65535")
    names = () if numbered else tuple(folder.name for folder in folders)
    return RecordSource(
        "image folder", RecordSet.of_images(ImageFiles(files), np.array(labels, np.int64), tuple(files), names)
    )


def _shape_of(file: Path) -> tuple[int, int, int]:
    with open_image(file) as image:
        return _shape(image)


def _shape(image: Any) -> tuple[int, int, int]:
    return (1 if image.mode in (_GREY, "1") else 3, image.height, image.width)


@contextlib.contextmanager
def open_image(file: Path) -> Iterator[Any]:
    """Open an image with Pillow; none of it is decoded yet.

    Raises:
        DataError: Pillow is missing, the file is no image, or it has too many pixels.
    """
    pillow = _pillow(file)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # Pillow's, of images that are merely odd
        try:
            image = stack.enter_context(pillow.open(file, formats=_FORMATS))
        except Exception as error:  # a reader of Pillow's may raise anything
            raise DataError(f"{file}: is no readable image ({error}); replace it or leave it out") from error
        if image.width * image.height > _MOST_PIXELS:
            raise DataError(
                f"{file}: has {image.width} x {image.height} pixels, more than {_MOST_PIXELS}, and was not decoded; "
                "make it smaller"
            )
        yield image


def _pillow(file: Path) -> ModuleType:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise DataError(
            f"{file}: images are decoded by Pillow, which is not installed here; install pillow, or give IDX, npz or "
            "safetensors files, which need nothing"
        ) from error
    return Image


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
