"""Runs of a folder: what each was, and how it ended; and which of them a name means."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.util.file_locks import FOLDER, try_lock
from csd_emu.util.nearest_word import hint_at
from csd_emu.util.yaml_files import load_yaml
from firmware_agent.common.errors import ConfigurationError, CsdError, EnvironmentUnfit
from host.core.owned_files import read_whole
from host.core.summary import Summary, decode_summary, name_clock
from host.monitoring.report.load_run import load_run
from host.monitoring.run_directory import JOB_FILE, RECORDS_FILE, SUMMARY_FILE, WEIGHTS_FILE

_STAMP = re.compile(r"(\d{8}-\d{6})-(.+?)(?:-\d+)?")
RUNNING, FINISHED, MISSED, FAILED, STOPPED, UNREADABLE = (
    "running",
    "finished",
    "missed",
    "failed",
    "stopped",
    "unreadable",
)


class RunRow(msgspec.Struct, frozen=True):
    """One run of a folder.

    Attributes:
        name: of the run: its job's.
        directory: its run directory.
        began: local time, as ``YYYY-MM-DD HH:MM:SS``.
        state: ``running``, ``finished``, ``missed`` (its target), ``failed`` (in the user's code), ``stopped`` before
            its end, or ``unreadable``.
        model, data, mode, seed, rounds, drives: what was trained, on how many drives; rounds are those that ended.
        accuracy, records_per_device_second, joules_per_record, energy_joules: null of a run that has not ended.
        clock: of its seconds; empty if it has not ended.
    """

    name: str
    directory: str
    began: str
    state: str
    model: str = ""
    data: str = ""
    mode: str = ""
    seed: int | None = None
    rounds: int | None = None
    drives: int | None = None
    accuracy: float | None = None
    records_per_device_second: float | None = None
    joules_per_record: float | None = None
    energy_joules: float | None = None
    clock: str = ""


class RunList(msgspec.Struct, frozen=True):
    """`csd-emu runs`: the runs of a folder."""

    folder: str
    runs: list[RunRow]


def list_directories(folder: Path) -> list[Path]:
    """Return the run directories in `folder`, the oldest first."""
    return sorted(path.parent for path in folder.glob(f"*/{RECORDS_FILE}"))


def list_runs(folder: Path) -> RunList:
    """Return the runs of `folder`, the oldest first; one that cannot be read is listed as such."""
    return RunList(str(folder), [read_row(path) for path in list_directories(folder)])


def read_row(path: Path) -> RunRow:
    """Return what one run was; of one that has not ended its records are read."""
    began, name = _name_of(path)
    try:
        summary = read_whole(path / SUMMARY_FILE, decode_summary, ConfigurationError, "remove it")
        job = load_yaml(path / JOB_FILE) if (path / JOB_FILE).exists() else {}
        facts: dict[str, Any] = {
            "name": job.get("name") or name,
            "directory": str(path),
            "began": began,
            "model": str(job.get("model", "")),
            "data": str((job.get("data") or {}).get("source", "")),
            "mode": str(job.get("mode", "")),
            "seed": job["seed"] if isinstance(job.get("seed"), int) else None,
        }
        if summary is None:
            rounds = load_run(path).rounds
            return RunRow(
                **facts,
                state=RUNNING if is_running(path) else STOPPED,
                rounds=len(rounds),
                drives=len(rounds[-1].devices) if rounds else None,
            )
    except (CsdError, OSError, AttributeError, TypeError):
        return RunRow(name, str(path), began, UNREADABLE)
    return RunRow(
        **facts,
        state=FAILED if summary.failures else FINISHED if summary.reached else MISSED,
        rounds=summary.rounds,
        drives=len(summary.device_seconds),
        accuracy=summary.accuracy,
        records_per_device_second=summary.records_per_device_second,
        joules_per_record=summary.joules_per_record,
        energy_joules=summary.energy_joules,
        clock=name_clock(summary.clock, summary.core_model),
    )


def _name_of(path: Path) -> tuple[str, str]:
    """Return when a run began, and what it is called, by its directory's name."""
    if (found := _STAMP.fullmatch(path.name)) is not None:
        with contextlib.suppress(ValueError):
            return time.strftime("%Y-%m-%d %H:%M:%S", time.strptime(found[1], "%Y%m%d-%H%M%S")), found[2]
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime)), path.name


def is_running(path: Path) -> bool:
    """Return whether a process works on a run directory: it holds its lock."""
    descriptor = os.open(path, FOLDER)
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def find_runs(text: str, folder: Path) -> list[Path]:
    """Return the run directories that `text` means: a path, a directory's name in `folder`, or a run's name.

    Raises:
        ConfigurationError: it means none.
    """
    for path in (Path(text), folder / text):
        if (path / RECORDS_FILE).is_file():
            return [path]
    directories = list_directories(folder)
    names = {path: {_name_of(path)[1], read_row(path).name} for path in directories}
    if found := [path for path in directories if text in names[path]]:
        return found
    known = sorted({name for own in names.values() for name in own})
    told = hint_at(text, known, f"its runs: {', '.join(known) or 'none'}")
    raise ConfigurationError(f"{text}: is no run directory, and no run of {folder} is called so; {told}")


def remove_runs(paths: Sequence[Path]) -> None:
    """Remove run directories with all that is in them.

    Raises:
        EnvironmentUnfit: one is of a run that goes on, or cannot be removed; then none is removed after it.
    """
    if busy := [str(path) for path in paths if is_running(path)]:
        raise EnvironmentUnfit(f"{', '.join(busy)}: a run goes on there; end it first")
    for path in paths:
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise EnvironmentUnfit(f"{path}: cannot be removed ({error.strerror})") from error
