"""Data sets for training: images as the model takes them, split into a training part and held-out records."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_emu.shape import Shape, parse_shape
from firmware_agent.errors import ConfigurationError, DataError

HELD_OUT_SHARE = 0.2
SYNTHETIC = "synthetic:"
_SYNTHETIC_IMAGES, _MOST_SYNTHETIC_IMAGES, _MOST_HELD_OUT = 20, 1_000_000, 256


@dataclass(frozen=True)
class Dataset:
    """A labelled data set.

    Attributes:
        name: for people and manifests.
        images: (samples, channels, height, width) uint8.
        labels: (samples,) int64.
        test_images: held out, as `images`.
        test_labels: held out, as `labels`.
        image_scale: what a stored value is multiplied by to become the model's input.
    """

    name: str
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]
    image_scale: float


def load_digits(seed: int) -> Dataset:
    """Return scikit-learn's bundled digits: 1797 grey images of 8x8, values 0 to 16; a fifth is held out by `seed`."""
    from sklearn.datasets import load_digits as bundled
    from sklearn.model_selection import train_test_split

    images, labels = bundled(return_X_y=True)
    shaped = images.reshape(-1, 1, 8, 8).astype(np.uint8)
    train_x, test_x, train_y, test_y = train_test_split(
        shaped, labels.astype(np.int64), test_size=HELD_OUT_SHARE, stratify=labels, random_state=seed
    )
    return Dataset("digits", train_x, train_y, test_x, test_y, 1 / 16)


def make_synthetic(shape: Shape, classes: int, count: int, seed: int) -> Dataset:
    """Return `count` images of noise, labelled at random: for timing, nothing can be learnt from them."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, *shape), np.uint8)
    labels = generator.integers(0, classes, count)
    held_out = min(round(count * HELD_OUT_SHARE), _MOST_HELD_OUT)
    parts = images[held_out:], labels[held_out:], images[:held_out], labels[:held_out]
    return Dataset(synthetic_source(shape, classes, count), *parts, 1 / 255)


def synthetic_source(shape: Shape, classes: int, count: int = _SYNTHETIC_IMAGES) -> str:
    """Return the name of a synthetic data set: ``synthetic:3x224x224:1000``, or with a count of images behind it."""
    source = f"{SYNTHETIC}{'x'.join(map(str, shape))}:{classes}"
    return source if count == _SYNTHETIC_IMAGES else f"{source}:{count}"


SOURCES: dict[str, Callable[[int], Dataset]] = {"digits": load_digits}


def load_dataset(source: str, seed: int) -> Dataset:
    """Return the data set called `source`; the split into training and held-out records depends on `seed` alone.

    Raises:
        DataError: there is no such data set.
    """
    check_source(source, "data.source")
    if source.startswith(SYNTHETIC):
        return make_synthetic(*_parse_synthetic(source, "data.source"), seed)
    return SOURCES[source](seed)


def check_source(source: str, where: str) -> None:
    """Return if there is a data set called `source`; `where` names the key in the error.

    Raises:
        DataError: there is none.
    """
    if source.startswith(SYNTHETIC):
        _parse_synthetic(source, where)
    elif source not in SOURCES:
        near = difflib.get_close_matches(source, SOURCES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(SOURCES)}"
        raise DataError(f"{where}: {source!r} is not known; {hint}")


def _parse_synthetic(source: str, where: str) -> tuple[Shape, int, int]:
    shape, *numbers = source.removeprefix(SYNTHETIC).split(":")
    try:
        if not 1 <= len(numbers) <= 2:
            raise ConfigurationError("it has a shape, a number of classes, and if wanted a number of images")
        classes, count = (_whole(text) for text in [*numbers, str(_SYNTHETIC_IMAGES)][:2])
        if count < _SYNTHETIC_IMAGES or count > _MOST_SYNTHETIC_IMAGES:
            raise ConfigurationError(f"{count} images: make it {_SYNTHETIC_IMAGES} to {_MOST_SYNTHETIC_IMAGES}")
        return parse_shape(shape), classes, count
    except ConfigurationError as error:
        raise DataError(f"{where}: {source!r}: {error}; for example synthetic:3x224x224:1000") from error


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigurationError(f"{text!r} is no number of classes or images")
    return int(text)
