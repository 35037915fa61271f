"""Drives of a test session: one process, one array at a time, and the folder for what tests leave."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest

from firmware_agent.common.errors import EnvironmentUnfit
from host.app.pytest_plugin.csd_array import CsdArray
from host.app.python_api.array_connection import ArrayConnection

# From bringing image and template about to the last hello: minutes at most, and many on a crowded machine.
_OPEN_SECONDS, _CLOSE_SECONDS = 3600.0, 300.0
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-\[\]]+")
_LONGEST_NAME, _HASH_CHARACTERS = 120, 8


class ArrayPool:
    """The arrays of one test process; with xdist each worker has its own."""

    def __init__(self, name: str, folder: Path, artifacts: Path | None, keep: str) -> None:
        """Start nothing yet.

        Args:
            name: of the arrays; no other process may use it.
            folder: for run directories and the process's log; the caller removes it some day.
            artifacts: where what is kept of tests goes, or None.
            keep: ``failed``, ``all`` or ``none``.
        """
        self._name, self._folder, self._artifacts, self._keep = name, folder, artifacts, keep
        self._connection: ArrayConnection | None = None
        self._tests = 0

    @classmethod
    def of(cls, config: pytest.Config, folders: pytest.TempPathFactory) -> ArrayPool:
        """Return the lab of this session, or of this worker, in a folder of the session's own `folders`.

        A second factory would not do: with --basetemp, which each worker of xdist has, it removes what the first made.
        """
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        folder = folders.mktemp("csd", numbered=True)
        given = config.getoption("csd_artifacts") or config.getini("csd_artifacts")
        artifacts = config.rootpath / given if given else None
        return cls(f"pytest-{worker}-{secrets.token_hex(3)}", folder, artifacts, config.getoption("csd_keep"))

    def open(self, keys: dict[str, Any], folder: Path) -> CsdArray:
        """Return the array that `keys` describe, prepared; paths in them and in jobs are relative to `folder`.

        Raises:
            EnvironmentUnfit: this machine cannot run its engine.
            ConfigurationError: no array can be like that.
        """
        if self._connection is not None and not self._connection.alive:
            self.close()  # it was killed, and its drives hold the name that the next ones need
        if self._connection is None:
            self._connection = ArrayConnection(self._name, self._folder / "array.log")
        self._tests += 1
        opened = self._connection.ask("open", _OPEN_SECONDS, keys=keys, folder=str(folder))
        return CsdArray(self._connection, self._name, opened, folder, self._folder / f"test-{self._tests}")

    def release(self, array: CsdArray, test: str, failed: bool) -> None:
        """Take an array back from a test; it stays up for the next one if nothing has happened to it.

        Raises:
            EnvironmentUnfit: what the test leaves cannot be kept; the array was taken back nevertheless.
        """
        try:
            self._keep_artifacts(array, test, failed)
        finally:
            if array.busy:  # a run that nobody waits for: only the process's end ends it
                self.close()
            elif self._connection is not None and self._connection.alive:
                self._connection.ask("release", _CLOSE_SECONDS, end=failed or array.harmed)
        if not failed:  # now, for until here a run may have written into it
            shutil.rmtree(array.runs, ignore_errors=True)

    def _keep_artifacts(self, array: CsdArray, test: str, failed: bool) -> None:
        if self._artifacts is not None and (self._keep == "all" or (self._keep == "failed" and failed)):
            folder = self._artifacts / file_name(test)
            try:
                array.save(folder)
            except OSError as error:
                raise EnvironmentUnfit(
                    f"{folder}: the artifacts of {test} cannot be kept ({error}); give --csd-artifacts another folder"
                ) from error

    def close(self) -> None:
        """End everything."""
        if self._connection is not None:
            self._connection.close(_CLOSE_SECONDS)
            self._connection = None


def file_name(test: str) -> str:
    """Return a name for the folder of a test: what it is called, without what a file system or a CI might refuse.

    Where that leaves more out than the usual ``/`` and ``::``, a hash tells it from others of which the same is left.
    """
    usual = test.replace("::", "-").replace("/", "-")
    if (name := _NOT_IN_NAMES.sub("-", usual).strip("-.")) == usual and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(test.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARACTERS]
    return f"{name[: _LONGEST_NAME - _HASH_CHARACTERS - 1]}-{digest}".lstrip("-")
