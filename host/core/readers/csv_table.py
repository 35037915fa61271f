"""CSV: a header with the columns' names, then one record a line; plain or packed with gzip."""

from __future__ import annotations

import csv
from pathlib import Path

from firmware_agent.common.datafiles.record_set import RecordSource
from firmware_agent.common.errors import DataError
from host.core.readers.table_records import Rows, check_names, read_table
from host.core.readers.text_lines import open_lines


def open_csv(path: Path, delimiter: str = ",") -> RecordSource:
    """Read a CSV file.

    Raises:
        DataError: it is damaged, or its columns do not fit (see `read_table`).
    """
    try:
        return read_table("CSV", path, _rows(path, delimiter))
    except csv.Error as error:
        raise DataError(f"{path}: is no CSV ({error}); write it again") from error


def _rows(path: Path, delimiter: str) -> Rows:
    with open_lines(path) as lines:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        check_names(path, header := next(reader, []))
        for cells in filter(None, reader):
            if len(cells) != len(header):
                told = f"{len(cells)} cells, the header {len(header)}"
                raise DataError(f"{path}: line {reader.line_num} has {told}; correct it")
            yield reader.line_num, dict(zip(header, map(_number, cells), strict=True))


def _number(cell: str) -> int | float | str:
    """Return the number that a cell is, or its text."""
    try:
        return int(cell) if cell.strip().lstrip("+-").isdecimal() else float(cell)
    except ValueError:
        return cell
