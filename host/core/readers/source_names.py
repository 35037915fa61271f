"""What a job's `data.source` may name beside what is built in, and the records that it names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from firmware_agent.common.datafiles import RecordSource, open_source
from firmware_agent.common.errors import DataError
from host.core.readers.csv_table import open_csv
from host.core.readers.hugging_face import HUGGINGFACE, is_folder, open_hugging_face
from host.core.readers.json_lines import open_json_lines
from host.core.readers.mask_folder import open_masks
from host.core.readers.parquet_table import open_parquet
from host.core.readers.user_dataset import open_code, read_code

FORMS = (
    "or a path with a / in it, of a .csv, .tsv, .jsonl, .parquet, .npz or .safetensors file or of a folder of images; "
    "or my_data.py:name, package.module:name or huggingface:NAME"
)
_TABLES: dict[str, Callable[[Path], RecordSource]] = {
    ".csv": open_csv,
    ".tsv": partial(open_csv, delimiter="\t"),
    ".jsonl": open_json_lines,
    ".ndjson": open_json_lines,
    ".parquet": open_parquet,
}
_CODE, _PACKED = ".py", ".gz"


def is_code(source: str) -> bool:
    """Return whether a source is a class, function or object of the user's: ``my_data.py:name``, ``package:name``."""
    where, colon, _ = source.rpartition(":")
    named = where.endswith(_CODE) or all(part.isidentifier() for part in where.split("."))
    return bool(colon) and named and not source.startswith(HUGGINGFACE)


def is_path(source: str) -> bool:
    """Return whether a source is the path of files, the user's code among them, and not the name of a data set."""
    if source.startswith(HUGGINGFACE):
        return is_folder(source.removeprefix(HUGGINGFACE))
    return "/" in source or file_of(source) is not None


def file_of(source: str) -> str | None:
    """Return the name of the user's file that a source names something in; None if it is none."""
    where = Path(source.rpartition(":")[0])
    return where.name if is_code(source) and where.suffix == _CODE else None


def make_absolute(source: str, folder: Path) -> str:
    """Return a source with a path that holds from everywhere, of one that holds from `folder`."""
    scheme = HUGGINGFACE if source.startswith(HUGGINGFACE) else ""
    return scheme + str((folder / source.removeprefix(scheme)).absolute()) if is_path(source) else source


def make_portable(source: str) -> str:
    """Return a source as it holds in a folder that has the user's file under its own name; data stay where they lie."""
    name = file_of(source)
    return source if name is None else f"{name}:{source.rpartition(':')[2]}"


def check_named(source: str, where: str) -> None:
    """Return if what a source names is there; nothing is read or run but the text of the user's code.

    Raises:
        DataError: it is not; the message begins with `where`.
    """
    if is_code(source):
        read_code(source, where)
    elif is_path(source) and not Path(path := source.removeprefix(HUGGINGFACE)).exists():
        raise DataError(f"{where}: {path} is not there; give the path of a folder or file with records")


def open_named(source: str) -> tuple[RecordSource, str | None]:
    """Return the records that a source names, and the text of the user's file, if it is one.

    Raises:
        DataError: they cannot be read.
        PluginError: the user's code raised.
    """
    if is_code(source):
        text = read_code(source, "data.source")
        return open_code(source, text), text
    return open_hugging_face(source) if source.startswith(HUGGINGFACE) else _open_path(Path(source)), None


def _open_path(path: Path) -> RecordSource:
    unpacked = path.with_suffix("") if path.suffix.lower() == _PACKED else path
    open_table = _TABLES.get(unpacked.suffix.lower())
    try:
        if open_table is not None and path.is_file():
            return open_table(path)
        return open_masks(path) or open_source(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); make it readable") from error
