"""Which private records each drive gets, by the job's `data.partition`: a built-in way, or the user's own function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common.errors import DataError, PluginError, user_errors
from host.config.partition_section import Partition
from host.config.plugins.plugin_loading import Plugin, describe_error
from host.config.plugins.plugin_section import accepted
from host.core.datasets import Dataset
from host.core.partition import (
    Indices,
    partition_by_class,
    partition_by_quantity,
    partition_by_value,
    partition_dirichlet,
    partition_evenly,
)


@dataclass(frozen=True)
class RecordSplit:
    """How records are dealt out: by what the job says, and the function of the user's that it names, loaded."""

    partition: Partition
    own: Plugin | None = None

    def deal(self, records: Dataset, drives: int, generator: np.random.Generator) -> list[Indices]:
        """Return the numbers of the records of each drive, sorted; no drive is empty, and no record is on two.

        Args:
            records: to be dealt out.
            drives: how many.
            generator: the only source of randomness.

        Raises:
            DataError: the records do not fit to what is asked for.
            PluginError: the user's function failed, or returned what cannot be.
        """
        if not (ways := self.partition.ways):
            return partition_evenly(len(records), drives, generator)
        try:
            return self._deal(records, drives, generator)
        except DataError as error:
            raise DataError(f"data.partition.{ways[0]}: {error}") from error

    def _deal(self, records: Dataset, drives: int, generator: np.random.Generator) -> list[Indices]:
        asked = self.partition
        if asked.function is not None:
            return _deal_by_own(self.own, records, drives, generator)
        if asked.quantity is not None:
            return partition_by_quantity(len(records), drives, asked.quantity, generator)
        if asked.column is not None:
            return partition_by_value(_values(records, asked.column), drives, generator)
        if records.labels is None:
            raise DataError(f"{records.name} has no class numbers to deal out by; leave it out")
        labels = records.labels.astype(np.int64)
        if asked.dirichlet is not None:
            return partition_dirichlet(labels, drives, asked.dirichlet, generator)
        return partition_by_class(labels, drives, asked.classes_per_drive or 0, generator)


def _values(records: Dataset, column: str) -> npt.NDArray[np.integer]:
    if (values := records.fields.get(column)) is None:
        raise DataError(f"{records.name} has no field {column!r}, but {', '.join(records.fields)}")
    if values.dtype.kind not in "iu" or values.size != len(records):
        told = f"{values.dtype}{list(values.shape[1:])}"
        raise DataError(f"{column} of {records.name} is not one whole number per record ({told}); name such a field")
    return values.reshape(len(records))


def _deal_by_own(own: Plugin | None, records: Dataset, drives: int, generator: np.random.Generator) -> list[Indices]:
    """Return what the user's function returns, checked; it cannot change the records.

    Raises:
        DataError: it is not loaded.
        PluginError: it failed, or returned what cannot be.
    """
    if own is None:
        raise DataError("code of your own is not run here; start the drives with csd-emu run, or csd-emu up --job")
    fields = {name: column.view() for name, column in records.fields.items()}
    for column in fields.values():
        column.flags.writeable = False
    given = accepted(own.target, {"fields": fields, "drives": drives, "generator": generator})
    try:
        found: Any = own.target(**own.options, **given)
        parts = [np.asarray(part) for part in found]
    except user_errors() as error:
        raise PluginError(f"{own} failed: {describe_error(error)}") from error
    if problem := _find_problem(parts, drives, len(records)):
        raise PluginError(f"{own} returned {problem}")
    return [np.sort(part).astype(np.int64) for part in parts]


def _find_problem(parts: list[npt.NDArray[Any]], drives: int, count: int) -> str:
    """Return what is wrong with the numbers of records of each drive, and what to do; empty if nothing is."""
    if len(parts) != drives:
        return f"{len(parts)} arrays for {drives} drives; return one per drive"
    for number, part in enumerate(parts):
        where = f"for drive {number}"
        if part.size == 0:
            return f"no record {where}; give each drive one at least"
        if part.ndim != 1 or part.dtype.kind not in "iu":
            return f"{part.dtype}{list(part.shape)} {where}; return a list of whole numbers, those of its records"
        if part.min() < 0 or part.max() >= count:
            wrong = part.min() if part.min() < 0 else part.max()
            return f"record {wrong} {where}; records are 0 to {count - 1}"
    numbers, times = np.unique(np.concatenate(parts), return_counts=True)
    if times.max() > 1:
        return f"record {numbers[times > 1][0]} more than once; give it to one drive alone"
    return ""
