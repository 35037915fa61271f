"""A data set of the user's own code: a map-style `torch.utils.data.Dataset`, read as a whole on the host."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common import imports
from firmware_agent.common.datafiles.record_set import RecordSet, RecordSource, check_fields, check_images, check_labels
from firmware_agent.common.errors import DataError, PluginError, user_errors
from firmware_agent.common.folded_traceback import describe_error
from firmware_agent.common.user_code.source_files import module_from, read_source
from host.core.readers.table_records import MOST_BYTES, split_records

_FIELDS = ("x", "y")
_FORM = "an item is (input, target), or a mapping of field to tensor, array or number"


def read_code(source: str, where: str) -> str | None:
    """Return the text of the file that ``my_data.py:name`` names, None for ``package.module:name``; nothing is run.

    Raises:
        DataError: it cannot be read or parsed, has no such name, or may not be named; the message begins with `where`.
    """
    module, _, name = source.rpartition(":")
    try:
        if not module.endswith(".py"):
            imports.check_module(module, name)
            return None
        text = read_source(Path(module))
        imports.check_source(text, module, name)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{where}: {source}: cannot be imported: {error}; write my_data.py:name, from the job file's folder, or "
            "package.module:name"
        ) from error
    return text


def open_code(source: str, text: str | None) -> RecordSource:
    """Return the records of the data set that `source` names, in the file with this text, None for an installed one.

    Raises:
        PluginError: the user's code raised.
        DataError: it makes no map-style data set, or one with records that are not of one form.
    """
    dataset = _call(source, "making it", lambda: _make(source, text))
    if not all(hasattr(type(dataset), name) for name in ("__len__", "__getitem__")):
        raise DataError(
            f"data.source: {source}: {type(dataset).__name__} has no __len__ or no __getitem__; give a map-style data "
            "set (of an iterable one, a list of its items)"
        )
    fields, path = _stack(source, dataset), Path(source.rpartition(":")[0])
    images, labels = (fields.get(name, np.empty(0)) for name in _FIELDS)
    classes = labels.ndim == 1 and labels.dtype.kind == "i"
    if len(fields) == 2 and classes and images.ndim == 4 and images.dtype in (np.uint8, np.float32):
        images, labels = check_images(images, source), check_labels(labels, len(images), source)
        return RecordSource("data set", RecordSet.of_images(images, labels, (path,)))
    return RecordSource("data set", RecordSet(check_fields(fields, source), (path,)))


def _make(source: str, text: str | None) -> Any:
    where, _, name = source.rpartition(":")
    if text is None:
        return imports.import_named(where, name)()
    module = module_from(where, text)
    found = operator.attrgetter(name)(module)
    return found if hasattr(type(found), "__getitem__") else imports.name_in(module, name)()


def _call(source: str, what: str, call: Callable[[], Any]) -> Any:
    """Return what a call into the user's code returns."""
    try:
        return call()
    except user_errors() as error:
        raise PluginError(f"data.source: {source}: {what} failed: {describe_error(error)}") from error


def _stack(source: str, dataset: Any) -> dict[str, npt.NDArray[Any]]:
    """Return field -> (records, ...) of all items."""
    count = _call(source, "len", lambda: len(dataset))
    if count < 1:
        raise DataError(f"data.source: {source}: holds no records; give some")
    first = _read_item(source, dataset, 0)
    taken, columns = 0, {name: list[npt.NDArray[Any]]() for name in first}
    for index in range(count):
        item = first if index == 0 else _read_item(source, dataset, index)
        if _form_of(item, 1) != _form_of(first, 1):
            raise DataError(
                f"data.source: {source}: item {index} is {_form_of(item)}, item 0 {_form_of(first)}; pad, cut or "
                "convert all to one form in __getitem__; the first axis alone may differ"
            )
        taken += sum(value.nbytes for value in item.values())
        if (needed := taken if index else count * taken) > MOST_BYTES:
            raise DataError(
                f"data.source: {source}: {count} records take {needed / 2**30:.1f} GiB in memory, more than "
                f"{MOST_BYTES >> 30}; give fewer, or write them to an .npz or .safetensors file once"
            )
        for name, value in item.items():
            columns[name].append(value)
    return {
        field: column
        for name, values in columns.items()
        for field, column in (
            split_records(name, np.concatenate(values), [len(each) for each in values], f"data.source: {source}")
            if values[0].ndim
            else {name: np.stack(values)}
        ).items()
    }


def _form_of(item: Mapping[str, npt.NDArray[Any]], begin: int = 0) -> str:
    """Return names, dtypes and shapes from an axis on; of what has no such axis, no shape."""
    return ", ".join(
        f"{name} {value.dtype}{list(value.shape)[begin:] if value.ndim >= begin else ''}"
        for name, value in sorted(item.items())
    )


def _read_item(source: str, dataset: Any, index: int) -> dict[str, npt.NDArray[Any]]:
    """Return the fields of an item."""
    item = _call(source, f"item {index}", lambda: dataset[index])
    parts = item if isinstance(item, Mapping | list | tuple) else (item,)
    named = parts if isinstance(parts, Mapping) else dict(zip(_FIELDS, parts, strict=False))
    try:
        if len(named) < len(parts) or not all(isinstance(name, str) for name in named):
            raise ValueError(f"it has {len(parts)} parts, or fields without a name")
        return {name: _plain(value) for name, value in named.items()}
    except Exception as error:  # a ragged list, a tensor that NumPy has no dtype for, a class with a broken __array__
        raise DataError(f"data.source: {source}: item {index}: {error}; {_FORM}") from error


def _plain(value: Any) -> npt.NDArray[Any]:
    """Return a value as an array: floats as float32, a whole number by itself as int64."""
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{type(value).__name__} is no number")
    alone = array.ndim == 0 and array.dtype.kind in "biu"
    return array.astype(np.int64 if alone else np.float32) if alone or array.dtype.kind == "f" else array
