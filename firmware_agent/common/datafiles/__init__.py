"""Records in the files that people have: image folders, IDX and CIFAR's binary form; npz and safetensors of any form.

A drive reads its own records so, where they lie; the host reads a job's with the same readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from firmware_agent.common.datafiles import cifar, idx, image_folder, npz, tensors
from firmware_agent.common.datafiles.record_set import Column, RecordSet, RecordSource, blocks_of
from firmware_agent.common.errors import DataError

__all__ = ["Column", "RecordSet", "RecordSource", "blocks_of", "open_source"]

_FORMATS = (
    "a folder with one folder of images per class, with IDX files (train-images-idx3-ubyte and its labels) or with "
    "CIFAR's .bin files, or an .npz or .safetensors file with images and labels, or an array for each field of a record"
)
# Of a folder with such parts only the first is trained on, and the host holds the second out.
_TRAIN, _TEST = ("train",), ("test", "val")


def open_source(path: Path) -> RecordSource:
    """Open the records at `path`, by what lies there; nothing but headers and labels is read yet.

    Raises:
        DataError: there is nothing that can be read so; the message says what is wrong with it and what would do.
    """
    try:
        return _split(path) if path.is_dir() else _file(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); give the path of {_FORMATS}") from error


def _split(path: Path) -> RecordSource:
    parts = {entry.name: entry for entry in path.iterdir() if entry.is_dir()}
    train = next((parts[name] for name in _TRAIN if name in parts), None)
    test = next((parts[name] for name in _TEST if name in parts), None)
    if train is None or set(parts) - {*_TRAIN, *_TEST}:
        return _folder(path)
    source = _folder(train)
    return source if test is None or source.held_out else RecordSource(source.kind, source.train, _folder(test).train)


def _folder(path: Path) -> RecordSource:
    for source in _readers(path):
        if source is not None:
            return source
    raise DataError(f"{path}: has no labelled images or other records; give the path of {_FORMATS}")


def _readers(path: Path) -> Iterator[RecordSource | None]:
    yield idx.open_folder(path)
    yield cifar.open_folder(path)
    yield image_folder.open_folder(path)


def _file(path: Path) -> RecordSource:
    if not path.exists():
        raise DataError(f"{path}: is not there; give the path of {_FORMATS}")
    if path.suffix == ".npz":
        return npz.open_file(path)
    if path.suffix == ".safetensors":
        return tensors.open_file(path)
    if idx.is_idx(path):
        return idx.open_images(path)
    raise DataError(f"{path}: is of no known format; give the path of {_FORMATS}")
