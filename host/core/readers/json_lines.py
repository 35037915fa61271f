"""JSON lines: one JSON object a line, all with the same keys; plain or packed with gzip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from firmware_agent.common.datafiles.record_set import RecordSource
from firmware_agent.common.errors import DataError
from host.core.readers.table_records import Rows, read_table
from host.core.readers.text_lines import open_lines


def open_json_lines(path: Path) -> RecordSource:
    """Read a file of JSON lines.

    Raises:
        DataError: it is damaged, or its columns do not fit (see `read_table`).
    """
    return read_table("JSON lines", path, _rows(path))


def _rows(path: Path) -> Rows:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    with open_lines(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    yield number, decode(line)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise DataError(f"{path}: line {number} is no JSON object ({error}); correct it") from error
