"""Hugging Face's data sets: ``huggingface:NAME`` of the hub, or the folder that `save_to_disk` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common.datafiles.record_set import RecordSource, target_of
from firmware_agent.common.errors import DataError
from host.core.readers.table_records import SPLIT, TEST, TRAIN, Rows, read_table

HUGGINGFACE = "huggingface:"


def open_hugging_face(source: str) -> RecordSource:
    """Read a data set; of one in parts, ``train`` is trained on, and ``test`` (else ``validation``) held out.

    Raises:
        DataError: `datasets` is not installed, it cannot be loaded, or its columns do not fit (see `read_table`).
    """
    name = source.removeprefix(HUGGINGFACE)
    try:
        import datasets

        found = datasets.load_from_disk(name) if is_folder(name) else datasets.load_dataset(name)
        parts = found if isinstance(found, dict) else {TRAIN: found}
        label = parts[TRAIN].features.get(target_of(parts[TRAIN].column_names) or "")
        return read_table("Hugging Face", Path(name), _rows(parts), "record", getattr(label, "names", ()))
    except ModuleNotFoundError as error:
        raise DataError(f"data.source: {source} needs {error.name}; pip install 'csd-emu[huggingface]'") from error
    except DataError:
        raise
    except Exception as error:  # of a network, a cache, a damaged file, or for want of a part called train
        raise DataError(
            f"data.source: {source} cannot be loaded ({type(error).__name__}: {error}); give the name of one with a "
            "part train at the hub, or the folder that save_to_disk wrote, as huggingface:./folder"
        ) from error


def is_folder(name: str) -> bool:
    """Return whether what stands behind ``huggingface:`` is a folder, and no name of the hub's."""
    return name.startswith((".", "/"))


def _rows(parts: Mapping[str, Any]) -> Rows:
    held_out = parts.get(TEST, parts.get("validation"))
    for part, dataset in ((TRAIN, parts[TRAIN]), (TEST, held_out)):
        for number, row in enumerate(dataset or ()):
            values = {name: _pixels(value) if hasattr(value, "getbands") else value for name, value in row.items()}
            yield number, values if held_out is None else values | {SPLIT: part}


def _pixels(image: Any) -> npt.NDArray[np.uint8]:
    """Return a decoded image of Pillow's as (channels, height, width): grey as it is, any other in colour."""
    return np.atleast_3d(np.asarray(image.convert("L" if image.mode in ("L", "1") else "RGB"))).transpose(2, 0, 1)
