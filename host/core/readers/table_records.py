"""Rows of a table become records: one rule for CSV, JSON lines, Parquet and Hugging Face's data sets.

A column called as what is to be predicted (see `target_of`) is the target: whole numbers and text are classes, other
numbers values. The other columns of plain numbers are together the field ``x``, float32, in the file's order. A column
of lists is a field by itself (see `split_records`). A column called ``split`` says which records are held out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common.datafiles.record_set import (
    FIELD_NAME,
    LENGTH,
    MOST_CLASSES,
    RecordSet,
    RecordSource,
    check_fields,
    check_images,
    target_of,
)
from firmware_agent.common.errors import DataError

MOST_BYTES = 8 << 30
"""Bytes of all fields in memory."""
INPUT, SPLIT, TRAIN, TEST = "x", "split", "train", "test"
_BLOCK_VALUES, _VALUE_BYTES, _MOST_SHOWN = 1 << 18, 64, 40
_NUMBERS, _LARGEST = frozenset({int, float, bool}), float(np.finfo(np.float32).max)
Rows = Iterable[tuple[int, Mapping[str, Any]]]


def read_table(kind: str, path: Path, rows: Rows, unit: str = "line", class_names: Sequence[str] = ()) -> RecordSource:
    """Return the records of a table.

    Args:
        kind: of file, for people.
        path: of the file.
        rows: number and values of each record: numbers, text, lists of numbers, or arrays; all with the same names.
        unit: what the numbers count.
        class_names: by number, if they are known.

    Raises:
        DataError: values are missing, of no one form or not finite, or there are no records or too few columns.
    """
    table = _Table(path, unit)
    for number, row in rows:
        table.add(number, row)
    return table.source(kind, tuple(class_names))


def check_names(path: Path, names: Sequence[str]) -> str | None:
    """Return which of a table's columns is the target; None if none is.

    Raises:
        DataError: a column has no name, two have the same, or several are called as a target.
    """
    if nameless := [place for place, name in enumerate(names, 1) if not name.strip() or name.startswith("__index")]:
        raise DataError(
            f"{path}: column {nameless[0]} has no name of its own; give it one, or leave it out (pandas writes its "
            "index so: index=False)"
        )
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise DataError(f"{path}: two columns are called {_shown(twice[0])}; rename or leave out one")
    target = target_of(names)
    if other := target_of(set(names) - {target}):
        raise DataError(f"{path}: both {target} and {other} are called as a target; rename or leave out one")
    return target


class _Table:
    """Columns that were taken in so far: arrays of blocks of records, but of target and split the values.

    A block of lists is their values, one behind the other; how many each record has of them stands by itself.
    """

    def __init__(self, path: Path, unit: str) -> None:
        self._path, self._unit = path, unit
        self._target: str | None = None
        self._columns: dict[str, list[Any]] = {}
        self._lengths: dict[str, list[int]] = {}
        self._block: list[tuple[int, Mapping[str, Any]]] = []
        self._block_records, self._bytes = 1, 0

    def add(self, number: int, row: Mapping[str, Any]) -> None:
        """Take in a record."""
        if not self._columns:
            self._target, self._columns = check_names(self._path, list(row)), {name: [] for name in row}
            values = sum(len(value) if isinstance(value, list) else getattr(value, "size", 1) for value in row.values())
            self._block_records = max(1, _BLOCK_VALUES // max(1, values))
        if row.keys() != self._columns.keys():
            name = sorted(row.keys() ^ self._columns.keys())[0]
            told = f"has {_shown(name)}, and the first has not" if name in row else f"has no {_shown(name)}"
            raise DataError(f"{self._path}: {self._unit} {number} {told}; give all records the same columns")
        self._block.append((number, row))
        if len(self._block) >= self._block_records:
            self._take_block()

    def source(self, kind: str, names: tuple[str, ...]) -> RecordSource:
        """Return all that was taken in."""
        self._take_block()
        test = np.array([value == TEST for value in self._columns.pop(SPLIT, [])], bool)
        target = self._columns.pop(self._target, []) if self._target else []
        arrays = {name: _join(blocks) for name, blocks in self._columns.items() if blocks}
        plain = [array for name, array in arrays.items() if name not in self._lengths]
        where, lengths = str(self._path), self._lengths
        lists = [split_records(name, array, lengths[name], where) for name, array in arrays.items() if name in lengths]
        fields = {field: array for each in lists for field, array in each.items()}
        if not self._columns and not self._target:
            raise DataError(f"{self._path}: holds no records; give a file with some")
        if not arrays or (plain and INPUT in fields) or not all(map(FIELD_NAME.fullmatch, fields)):
            raise DataError(
                f"{self._path}: has columns that make no fields: give one beside the target at least, call those of "
                "lists by letters and digits, and none x beside plain numbers, which are x together"
            )
        if plain:
            fields = {INPUT: np.stack(plain, axis=1)} | fields
        if self._target and isinstance(target[0], np.ndarray):
            fields |= split_records(self._target, _join(target), lengths[self._target], where)
        elif self._target:
            fields[self._target], names = self._read_target(target, names)
        checked = check_fields(fields, str(self._path))
        if test.all() and len(test):
            raise DataError(f"{self._path}: column 'split' says test of all records; call some train")
        masks = [~test, test] if test.any() else [slice(None)]
        return RecordSource(kind, *(self._records({f: a[mask] for f, a in checked.items()}, names) for mask in masks))

    def _records(self, fields: dict[str, npt.NDArray[Any]], names: tuple[str, ...]) -> RecordSet:
        """Return labelled images, if it is these that the fields are, else records of any form."""
        labels = fields.get(self._target or "")
        images = next(array for name, array in fields.items() if name != self._target or labels is None)
        if labels is not None and len(fields) == 2 and labels.dtype == np.int64 and images.dtype == np.uint8:
            return RecordSet.of_images(check_images(images, str(self._path)), labels, (self._path,), names)
        return RecordSet(fields, (self._path,), names)

    def _take_block(self) -> None:
        for name, column in self._columns.items():
            values = [row[name] for _, row in self._block]
            if name == SPLIT:
                self._check(name, [value in (TRAIN, TEST) for value in values], "is neither train nor test; correct it")
                column += values
            elif name == self._target and values and not isinstance(values[0], list | np.ndarray):
                self._check(name, [_is_number(each) or (isinstance(each, str) and each.strip()) for each in values])
                column += values
                self._bytes += _VALUE_BYTES * len(values)
            elif values:
                column.append(self._array(name, values, column))
                self._bytes += column[-1].nbytes
        self._block.clear()
        if self._bytes > MOST_BYTES:
            raise DataError(
                f"{self._path}: its records take more than {MOST_BYTES >> 30} GiB in memory; give fewer, or an .npz or "
                ".safetensors file"
            )

    def _array(self, name: str, values: list[Any], before: list[Any]) -> npt.NDArray[Any]:
        """Return the values of a column, which have the form of those before."""
        if all(map(_is_number, values)) and name not in self._lengths:
            return np.array(values, np.float32)
        arrays = [_read_value(value) for value in values]
        self._check(name, [array is not None for array in arrays])
        found = [array for array in arrays if array is not None]
        listed, rest = name in self._lengths or not before, (before or found)[0].shape[1:]
        told = "is of another form than others; numbers and lists do not mix, and lists may differ in length alone"
        self._check(name, [listed and array.ndim > 0 and array.shape[1:] == rest for array in found], told)
        self._lengths.setdefault(name, []).extend(map(len, found))
        return np.concatenate(found)

    def _check(self, name: str, is_right: Sequence[Any], wrong: str | None = None) -> None:
        """Raise the error of the first value of the block that is not right, if there is one."""
        for right, (number, row) in zip(is_right, self._block, strict=True):
            if not right:
                told = wrong or _complaint(row[name])
                raise DataError(f"{self._path}: {self._unit} {number}, column {_shown(name)}: {told}")

    def _read_target(
        self, values: list[Any], names: tuple[str, ...]
    ) -> tuple[npt.NDArray[np.int64] | npt.NDArray[np.float32], tuple[str, ...]]:
        """Return the class number of each record, and the classes' names; or (records, 1) values."""
        if any(isinstance(value, str) for value in values):
            names = tuple(sorted(set(map(str, values))))
            numbers = {name: number for number, name in enumerate(names)}
            values = [numbers[str(value)] for value in values]
        elif any(type(value) is float for value in values):
            return np.array(values, np.float32)[:, None], ()
        least, largest = min(values), max(values)
        if least < 0 or largest >= MOST_CLASSES or (least == largest and len(values) > 1):
            raise DataError(
                f"{self._path}: column {self._target!r} goes from {_shown(least)} to {_shown(largest)}; class numbers "
                f"are 0 to {MOST_CLASSES - 1}, of two classes at least, and values to regress on have a decimal point"
            )
        return np.array(values, np.int64), names


def split_records(
    name: str, values: npt.NDArray[Any], lengths: Sequence[int], where: str
) -> dict[str, npt.NDArray[Any]]:
    """Return a field of all records; where they differ in length, padded with 0, and the field of their lengths.

    Args:
        name: of the field.
        values: (all values, ...), record behind record.
        lengths: how many of them each record has.
        where: begins errors.

    Raises:
        DataError: padded, they take more memory than there may be.
    """
    counts = np.array(lengths, np.int64)
    shape = len(counts), int(counts.max()), *values.shape[1:]
    if shape[0] * shape[1] == len(values):
        return {name: values.reshape(shape)}
    if math.prod(shape) * values.itemsize > MOST_BYTES:
        raise DataError(
            f"{where}: field {name}: records of {counts.min()} to {shape[1]} values take over {MOST_BYTES >> 30} GiB "
            "in memory when each is as long as the longest; cut the longest, or leave them out"
        )
    padded = np.zeros(shape, values.dtype)
    padded[np.arange(shape[1]) < counts[:, None]] = values
    return {name: padded, name + LENGTH: counts}


def _is_number(value: Any) -> bool:
    """Return whether a value is a plain number that float32 holds."""
    return type(value) in _NUMBERS and abs(value) <= _LARGEST


def _join(blocks: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    joined = np.concatenate(blocks)
    return joined.astype(np.float32, copy=False) if joined.dtype.kind == "f" else joined


def _read_value(value: Any) -> npt.NDArray[Any] | None:
    """Return a list of finite numbers as int64 or float32, an array or number as it is; None of anything else."""
    if isinstance(value, np.ndarray) or _is_number(value):
        return np.asarray(value)
    if not isinstance(value, list) or not value or not _NUMBERS.issuperset(map(type, value)):
        return None
    array = np.array(value)
    if array.dtype.kind == "f" and (np.abs(array) <= _LARGEST).all():
        return array.astype(np.float32)
    return array.astype(np.int64) if array.dtype.kind in "bi" else None


def _complaint(value: Any) -> str:
    """Return what is wrong with a value that is no number, and the remedy."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return "is empty; fill it in, or leave the record out"
    if isinstance(value, str):
        return f"is text ({_shown(value)}); make it a number or leave the column out: text may be the target alone"
    if isinstance(value, list):
        return "is a list that is empty, or not of finite numbers alone; give it a number at least, or leave it out"
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}; correct it, or leave the record out"
    return f"is {_shown(value)} and no number that float32 holds; make it one, or leave the column out"


def _shown(value: Any) -> str:
    text = f"a {type(value).__name__} of many digits" if isinstance(value, int) and abs(value) > 1e30 else repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
