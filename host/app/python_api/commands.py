"""What commands do, from Python: each runs in a process of its own, and what it prints as JSON is returned."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from firmware_agent.common import errors
from host.app.python_api.job_content import JobLike, read_job
from host.app.python_api.user_source import name_code

FileLike = str | os.PathLike[str] | Mapping[str, Any]
_OF_A_FILE = re.compile(r"[^:]+\.py:\w")


def simulate(job: JobLike, array: FileLike, *, changes: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Work out how fast an array would train a job in step; no drive is started (`csd-emu simulate`).

    >>> csd_emu.simulate("job.yaml", "array.yaml", drives=36, steps=50)  # doctest: +SKIP

    Args:
        job: a job file, or its keys.
        array: an array file, or its keys.
        changes: keys of the job in place of its own.
        options: of the command, such as ``drives=36``.

    Returns:
        What the command prints with ``--json`` (docs/schemas/simulate.json); seconds are modelled.

    Raises:
        CsdError: the command failed; of the class that it reports.
    """
    return _run_on_files("simulate", job, array, changes or {}, options)


def plan(job: JobLike, array: FileLike, *, changes: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Work out which devices, or which layers on the host, a job is best run with (`csd-emu plan`).

    >>> csd_emu.plan("job.yaml", "array.yaml", prefer="energy", from_tables=True)  # doctest: +SKIP

    Args:
        job: a job file, or its keys.
        array: an array file, or its keys.
        changes: keys of the job in place of its own.
        options: of the command, such as ``prefer="energy"``, ``from_tables=True`` or ``placement=True``.

    Returns:
        What the command prints with ``--json`` (docs/schemas/plan.json).

    Raises:
        CsdError: the command failed; of the class that it reports.
    """
    return _run_on_files("plan", job, array, changes or {}, options)


def calibrate(model: str | Callable[..., Any], **options: Any) -> Any:
    """Measure what a training step of a model costs, on a virtual machine or the host (`csd-emu calibrate`).

    The table is kept: runs of native drives are on the clock ``modelled`` from then on.

    >>> csd_emu.calibrate(MyNet, input="1x8x8", batches="1,8,32")["path"]  # doctest: +SKIP

    Args:
        model: as a job names it, or a class or function.
        options: of the command.

    Returns:
        What the command prints with ``--json`` (docs/schemas/calibrate.json).

    Raises:
        CsdError: the command failed; of the class that it reports.
    """
    with tempfile.TemporaryDirectory(prefix="csd-python-") as folder:
        return _run("calibrate", [model if isinstance(model, str) else name_code(model, Path(folder))], options)


def _run_on_files(command: str, job: JobLike, array: FileLike, changes: Mapping[str, Any], options: Any) -> Any:
    with tempfile.TemporaryDirectory(prefix="csd-python-") as scratch:
        content, _, folder = read_job(job, changes, Path.cwd(), Path(scratch))
        files = Path(scratch, "job.yaml"), Path(scratch, "array.yaml")
        files[0].write_text(json.dumps(with_whole_paths(content, folder.absolute())), encoding="utf-8")
        if isinstance(array, Mapping):
            files[1].write_text(json.dumps({"name": "array"} | dict(array)), encoding="utf-8")
        where = files[1] if isinstance(array, Mapping) else Path(array)
        return _run(command, [str(files[0])], {"array": str(where)} | options)


def with_whole_paths(content: Any, folder: Path) -> Any:
    """Return a job's content as it can be read from any folder: names of files are relative to `folder`."""
    if isinstance(content, dict):
        return {
            key: str(folder / value)
            if key == "source" and isinstance(value, str) and "/" in value
            else with_whole_paths(value, folder)
            for key, value in content.items()
        }
    return str(folder / content) if isinstance(content, str) and _OF_A_FILE.match(content) else content


def _run(command: str, arguments: list[str], options: Mapping[str, Any]) -> Any:
    line = [sys.executable, "-P", "-m", "host", command, *arguments, "--json", *list_options(options)]
    ended = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        return json.loads(ended.stdout)
    except ValueError:
        kind = errors.ConfigurationError if ended.returncode == errors.ConfigurationError.exit_code else errors.CsdError
        raise kind(ended.stderr.strip().removeprefix("csd-emu: ") or f"csd-emu {command}: {ended.returncode}") from None


def list_options(options: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments as options of a command: ``from_tables=True`` as ``--from-tables``."""
    listed: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            listed.append(option)
        elif value is not None and value is not False:
            for each in value if isinstance(value, list | tuple) else (value,):
                listed += [option, str(each)]
    return listed
