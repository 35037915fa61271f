"""Job that Python gives, as a job file would have it: a file with changes, or keys, and a class as the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from csd_emu.util.config_files import load_mapping
from firmware_agent.common.errors import ConfigurationError
from host.app.python_api.user_source import name_code
from host.config.overrides import merge_keys, override
from host.core.plain_text import plain_name

JobLike = str | os.PathLike[str] | Mapping[str, Any]


def plain_value(value: Any, where: str) -> Any:
    """Return a value as a job file has it: NumPy's and PyTorch's as plain ones.

    Raises:
        ConfigurationError: no file could hold it; the message begins with `where`.
    """
    match value.tolist() if hasattr(value, "tolist") and not isinstance(value, Mapping) else value:
        case Mapping() as section:
            return {key: plain_value(each, f"{where}.{key}") for key, each in section.items()}
        case list() | tuple() | range() as values:
            return [plain_value(each, where) for each in values]
        case os.PathLike() as path:
            return os.fspath(path)
        case None | bool() | int() | float() | str() as plain:
            return plain
        case other:
            raise ConfigurationError(
                f"{where}: a {type(other).__name__} is nothing that a job file can hold; give plain values"
            )


def read_job(
    job: JobLike | None, changes: Mapping[str, Any], folder: Path, sources: Path
) -> tuple[dict[str, Any], str, Path]:
    """Return a job's content, what it is called in messages, and the folder that its paths are relative to.

    Args:
        job: a job file, relative to `folder`, or what would be in one.
        changes: keys in place of the job's own.
        folder: see above.
        sources: folder for the source of a class or function that no file of its own has.

    Raises:
        ConfigurationError: the file cannot be read, one setting is given twice, or a model's source cannot be shipped.
    """
    merge_keys({}, changes, "train")
    if job is None or isinstance(job, Mapping):
        content, where = override(override({}, job or {}, "the job"), changes, "the job"), "the job"
    else:
        path = folder / job
        content, where, folder = override(load_mapping(path), changes, str(path)), str(path), path.parent
        content.setdefault("name", plain_name(path.stem))
    for key, value in content.items():
        if not callable(value):
            content[key] = plain_value(value, f"{where}: {key}")
    if isinstance(content.get("data"), str):
        content["data"] = {"source": content["data"]}
    if callable(model := content.get("model")):
        content["model"] = name_code(model, sources)
    return content, where, folder
