"""Data sets: records to train on and records that are held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import distribution
from typing import Any

import numpy as np
import numpy.typing as npt

from csd_emu.util.nearest_word import hint_at
from csd_emu.util.record_shape import Shape, parse_shape
from firmware_agent.common.datafiles import RecordSet, RecordSource, blocks_of
from firmware_agent.common.datafiles.record_set import IMAGE, LABEL, LENGTH, count_classes, input_of, labels_of
from firmware_agent.common.errors import ConfigurationError, DataError
from host.core.partition import Indices
from host.core.readers.hugging_face import HUGGINGFACE
from host.core.readers.source_names import FORMS, check_named, is_code, is_path, open_named

HELD_OUT_SHARE = 0.2
SYNTHETIC = "synthetic:"
_SYNTHETIC_IMAGES, _MOST_SYNTHETIC_IMAGES, _MOST_HELD_OUT = 20, 1_000_000, 256


@dataclass(frozen=True)
class Dataset:
    """Records of one form.

    Attributes:
        name: for people and manifests.
        fields: name -> (records, ...) values, to train on.
        held_out: the same of the records that are held out.
        input_scale: what bytes of the model's input are multiplied by.
        class_names: by number; empty if they have none.
        input_name: the field that the model takes, or several; None for the only one that is not to be predicted.
        code: text of the user's file that it is from, without which it cannot be made again.
    """

    name: str
    fields: Mapping[str, npt.NDArray[Any]]
    held_out: Mapping[str, npt.NDArray[Any]]
    input_scale: float
    class_names: tuple[str, ...] = ()
    input_name: str | Sequence[str] | None = None
    code: str | None = None

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    @property
    def input_fields(self) -> Sequence[str]:
        """The fields that the model takes, in this order; but for the first, a collate function may make them.

        Raises:
            DataError: one has to be named, or there is no first of that name.
        """
        names = [self.input_name] if isinstance(self.input_name, str) else self.input_name or [input_of(self.fields)]
        if names[0] not in self.fields:
            raise DataError(f"data.input: {self.name} has no field {names[0]!r}, but {', '.join(self.fields)}")
        return names

    @property
    def inputs(self) -> npt.NDArray[Any]:
        """(records, ...) what the model takes first, as stored."""
        return self.fields[self.input_fields[0]]

    @property
    def lengths(self) -> dict[str, npt.NDArray[Any]]:
        """Field whose records differ in length -> (records,) how long they are."""
        return {name: self.fields[name + LENGTH] for name in self.fields if name + LENGTH in self.fields}

    @property
    def labels(self) -> npt.NDArray[np.integer] | None:
        """(records,) class numbers; None if records have none."""
        return labels_of(self.fields)

    @property
    def shape(self) -> Shape:
        """Of one record's input."""
        return self.inputs.shape[1:]

    @property
    def are_images(self) -> bool:
        """Whether the model takes images alone, (channels, height, width) of bytes or floats."""
        return len(self.input_fields) == 1 and len(self.shape) == 3 and self.inputs.dtype.kind in "uf"

    @property
    def record_bytes(self) -> int:
        """Bytes of a record, as stored."""
        return sum(column.nbytes for column in self.fields.values()) // len(self)

    @property
    def classes(self) -> int:
        """How many classes there are; 0 if records have none."""
        return len(self.class_names) or max(count_classes(self.fields), count_classes(self.held_out))

    @classmethod
    def of_images(
        cls,
        name: str,
        train: tuple[npt.NDArray[Any], npt.NDArray[np.int64]],
        held_out: tuple[npt.NDArray[Any], npt.NDArray[np.int64]],
        input_scale: float,
    ) -> Dataset:
        """Return labelled images: of each part (records, channels, height, width) images and (records,) labels."""
        fields, kept = (dict(zip((IMAGE, LABEL), part, strict=True)) for part in (train, held_out))
        return cls(name, fields, kept, input_scale)


def load_digits(seed: int) -> Dataset:
    """Return scikit-learn's bundled digits: 1797 grey images of 8x8, values 0 to 16; a fifth is held out by `seed`.

    They are read from its file, and dealt out as its `train_test_split` does: to import it takes more than a second.
    """
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    values = np.loadtxt(str(file), np.uint8, delimiter=",")
    images, labels = values[:, :-1].reshape(-1, 1, 8, 8), values[:, -1].astype(np.int64)
    train, test = split_stratified(labels, HELD_OUT_SHARE, seed)
    return Dataset.of_images("digits", (images[train], labels[train]), (images[test], labels[test]), 1 / 16)


def split_stratified(labels: Indices, held_out_share: float, seed: int) -> tuple[Indices, Indices]:
    """Return records to train on and records that are held out, in random order, of each class its share.

    Number for number what `sklearn.model_selection.train_test_split` returns, for records `stratify`-d by label.

    Args:
        labels: (records,) class of each, from 0 on; of each there are two records at least.
        held_out_share: of the records, over 0 and below 1.
        seed: of the choice.
    """
    rng, counts = np.random.RandomState(seed), np.bincount(labels)
    held_out = math.ceil(held_out_share * len(labels))
    kept = _draw_counts(counts, len(labels) - held_out, rng)
    _draw_counts(counts - kept, held_out, rng)  # all that are left; but rounding may have it draw lots
    members = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(counts))]
    parts = [np.split(each, [count]) for each, count in zip(members, kept, strict=True)]
    train, test = (rng.permutation(np.concatenate(part)) for part in zip(*parts, strict=True))
    return train, test


def _draw_counts(counts: Indices, total: int, rng: np.random.RandomState) -> Indices:
    """Return (classes,) how many of `total` records each class has: in proportion, the last ones by largest remainder.

    Of equal remainders, lots are drawn.
    """
    shares = counts / counts.sum() * total
    drawn = np.floor(shares)
    remainders = shares - drawn
    for remainder in np.unique(remainders)[::-1]:
        if missing := int(total - drawn.sum()):
            equal = np.flatnonzero(remainders == remainder)
            drawn[rng.choice(equal, min(len(equal), missing), replace=False)] += 1
    return np.asarray(drawn, np.int64)


def make_synthetic(shape: Shape, classes: int, count: int, seed: int) -> Dataset:
    """Return `count` images of noise, labelled at random: for timing, nothing can be learnt from them."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, *shape), np.uint8)
    labels = generator.integers(0, classes, count)
    held_out = min(round(count * HELD_OUT_SHARE), _MOST_HELD_OUT)
    parts = (images[held_out:], labels[held_out:]), (images[:held_out], labels[:held_out])
    return Dataset.of_images(synthetic_source(shape, classes, count), *parts, 1 / 255)


def synthetic_source(shape: Shape, classes: int, count: int = _SYNTHETIC_IMAGES) -> str:
    """Return the name of a synthetic data set: ``synthetic:3x224x224:1000``, or with a count of images behind it."""
    source = f"{SYNTHETIC}{'x'.join(map(str, shape))}:{classes}"
    return source if count == _SYNTHETIC_IMAGES else f"{source}:{count}"


SOURCES: dict[str, Callable[[int], Dataset]] = {"digits": load_digits}


def load_dataset(source: str, seed: int, input_name: str | Sequence[str] | None = None) -> Dataset:
    """Return the data set called `source`, of which the model takes the field `input_name`; None for the usual one.

    The split into training and held-out records depends on `seed` alone.

    What the makers of the user's own records held out is held out, else a fifth.

    Raises:
        DataError: there is no such data set, its records cannot be read, or are too few to hold some out.
        PluginError: it is code of the user's, which raised.
    """
    check_source(source, "data.source")
    if source.startswith(SYNTHETIC):
        found = make_synthetic(*_parse_synthetic(source, "data.source"), seed)
    else:
        found = SOURCES[source](seed) if source in SOURCES else _split(source, *open_named(source), seed)
    return replace(found, input_name=input_name)


def check_source(source: str, where: str) -> None:
    """Return if there is a data set called `source`; `where` names the key in the error.

    Raises:
        DataError: there is none.
    """
    if source.startswith(SYNTHETIC):
        _parse_synthetic(source, where)
    elif is_path(source) or is_code(source) or source.startswith(HUGGINGFACE):
        check_named(source, where)
    elif source not in SOURCES:
        hint = hint_at(source, SOURCES, f"there are: {', '.join(SOURCES)}, {SYNTHETIC}SHAPE:CLASSES, {FORMS}")
        raise DataError(f"{where}: {source!r} is not known; {hint}")


def _split(name: str, source: RecordSource, code: str | None, seed: int) -> Dataset:
    """Return records as a data set: those that their makers held out are held out, else a fifth by `seed`."""
    train = read_fields(source.train)
    if source.held_out is None:
        train, test = _hold_out(train, name, seed)
    else:
        test = read_fields(source.held_out)
        if (here := _describe(train)) != (there := _describe(test)):
            raise DataError(f"{name}: records to train on are {here}, those held out {there}; give both one form")
    return Dataset(name, train, test, 1 / 255, source.train.class_names, code=code)


def read_fields(part: RecordSet) -> dict[str, npt.NDArray[Any]]:
    """Return the fields of all records.

    Raises:
        DataError: a record is wrong: that is said before anything starts.
    """
    for column in part.fields.values():
        for _ in blocks_of(column, str(part.files[0])):
            pass
    return {
        name: column if isinstance(column, np.ndarray) else column[np.arange(len(column))]
        for name, column in part.fields.items()
    }


def _describe(fields: Mapping[str, npt.NDArray[Any]]) -> str:
    return ", ".join(f"{name} {column.dtype}{list(column.shape[1:])}" for name, column in sorted(fields.items()))


def _hold_out(
    fields: Mapping[str, npt.NDArray[Any]], name: str, seed: int
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
    """Return records to train on, and records held out: a fifth, of every class as far as it goes."""
    generator, labels = np.random.default_rng(seed), labels_of(fields)
    count = len(next(iter(fields.values())))
    strata = np.zeros(count, np.int64) if labels is None else labels
    held_out = np.zeros(count, bool)
    for stratum in np.unique(strata):
        members = generator.permutation(np.flatnonzero(strata == stratum))
        held_out[members[: round(len(members) * HELD_OUT_SHARE)]] = True
    if not held_out.any():
        raise DataError(f"{name}: {count} records are too few to hold a fifth of each class out; give more")
    train, test = ({field: column[part] for field, column in fields.items()} for part in (~held_out, held_out))
    return train, test


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
