"""Parquet, read by row groups, with pyarrow."""

from __future__ import annotations

from pathlib import Path

from firmware_agent.common.datafiles.record_set import RecordSource
from firmware_agent.common.errors import DataError
from host.core.readers.table_records import MOST_BYTES, Rows, check_names, read_table

_BATCH_ROWS, _LEAST_BYTES = 1024, 4


def open_parquet(path: Path) -> RecordSource:
    """Read a Parquet file.

    Raises:
        DataError: pyarrow is not installed, the file is damaged, or its columns do not fit (see `read_table`).
    """
    try:
        return read_table("Parquet", path, _rows(path), "record")
    except ModuleNotFoundError as error:
        raise DataError(
            f"{path}: Parquet needs pyarrow; pip install 'csd-emu[parquet]', or give CSV, JSON lines or .npz"
        ) from error
    except DataError:
        raise
    except Exception as error:  # pyarrow raises what it likes of a damaged file: its own errors, OSError, ValueError
        raise DataError(f"{path}: is no readable Parquet file ({error}); write it again") from error


def _rows(path: Path) -> Rows:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        check_names(path, names := list(file.schema_arrow.names))
        if file.metadata.num_rows * len(names) * _LEAST_BYTES > MOST_BYTES:
            raise DataError(f"{path}: its records take more than {MOST_BYTES >> 30} GiB in memory; give fewer")
        yield from enumerate(row for batch in file.iter_batches(_BATCH_ROWS) for row in batch.to_pylist())
