"""A run's own folder: resolved configuration, versions, records as JSON lines, summary, final weights."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgspec
import yaml
from pydantic import BaseModel
from safetensors.numpy import save_file

from firmware_agent.errors import EnvironmentUnfit
from firmware_agent.exchange import Array
from host.records import EventRecord, RoundRecord, Summary

REPORT = "report.html"
_LEAST_BYTES = 10 << 20
_PACKAGES = ("csd-emu", "torch", "numpy", "grpcio", "msgspec", "scikit-learn")


class RunDirectory:
    """An open run directory; a context manager."""

    def __init__(self, runs: Path, name: str) -> None:
        """Make ``runs/DATE-TIME-name``, with a number behind it if there is one already.

        Raises:
            EnvironmentUnfit: the folder cannot be made.
        """
        stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
        try:
            self.path = _make_folder(runs, stem)
            self._lines: IO[bytes] = open(self.path / "records.jsonl", "wb")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise EnvironmentUnfit(
                f"{runs}: no run directory can be made ({error}); give another with --runs"
            ) from error

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._lines.closed

    def write_configuration(
        self,
        array: BaseModel,
        job: BaseModel,
        facts: Mapping[str, Mapping[str, str]],
        profiles: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Write array.yaml and job.yaml as resolved, and versions.json.

        The latter holds the host's and the devices' facts, and each profile's figures with their sources, on which all
        device seconds of emulated drives rest.
        """
        for name, config in (("array.yaml", array), ("job.yaml", job)):
            (self.path / name).write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        versions: dict[str, Any] = {"host": {"python": platform.python_version(), "machine": platform.machine()}}
        versions["host"] |= {package: metadata.version(package) for package in _PACKAGES}
        versions["devices"] = facts
        versions["profiles"] = profiles
        (self.path / "versions.json").write_bytes(msgspec.json.format(msgspec.json.encode(versions)))

    def write_model(self, name: str, source: str) -> None:
        """Write the user's model file under its own name, so that job.yaml can be run again from here."""
        (self.path / Path(name.partition(":")[0]).name).write_text(source, encoding="utf-8")

    def append(self, record: RoundRecord | EventRecord) -> None:
        """Write one record; it is on disk when this returns, so that a killed run loses nothing that happened."""
        self._lines.write(msgspec.json.encode(record) + b"\n")
        self._lines.flush()

    def finish(self, summary: Summary, weights: Mapping[str, Array]) -> None:
        """Write summary.json and the final weights."""
        (self.path / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
        save_file(dict(weights), self.path / "model.safetensors")


def check_writable(runs: Path) -> None:
    """Return if run directories can be made in `runs`: for a command to fail before it has begun.

    Raises:
        EnvironmentUnfit: they cannot.
    """
    existing = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK) or not _has_room(existing):
        raise EnvironmentUnfit(f"{runs}: no run directory can be made there; free space, or give another with --runs")


def _has_room(folder: Path) -> bool:
    return shutil.disk_usage(folder).free > _LEAST_BYTES


def _make_folder(runs: Path, stem: str) -> Path:
    runs.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = runs / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1
