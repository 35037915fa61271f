"""A run's own folder: resolved configuration, versions, records as JSON lines, checkpoint, summary, final weights."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import yaml
from pydantic import BaseModel
from safetensors.numpy import save

from csd_emu.util.file_locks import FOLDER, try_lock
from firmware_agent.common.atomic_files import append_file, read_lines, remove_partial
from firmware_agent.common.errors import CheckpointError, ConfigurationError, EnvironmentUnfit
from firmware_agent.common.slices import Array
from host.core.failures import Failure, FailureRecord
from host.core.owned_files import read_whole, write_whole, writing
from host.core.partition import HeldRecords
from host.core.records import EventKind, EventRecord, Record, RoundRecord, decode_record
from host.core.slice_record import SliceRecord
from host.core.summary import Summary, decode_summary
from host.fleet.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

ARRAY_FILE, JOB_FILE, VERSIONS_FILE, SERVER_GROUP_FILE = "array.yaml", "job.yaml", "versions.json", "servers.json"
RECORDS_FILE, SUMMARY_FILE, WEIGHTS_FILE = "records.jsonl", "summary.json", "model.safetensors"
CHECKPOINT_FILE, REPORT_FILE, TRACE_FILE = "checkpoint.safetensors", "report.html", "trace.json"
METRICS_FILE, SLICE_LINES_FILE, SLICES_FILE = "metrics.prom", "slices.jsonl", "slices.json"
# Key of versions.json: what records each drive holds.
HELD = "held_records"
# So many slices of a run are written down: some 20 MB.
MOST_SLICES = 100_000
_MOST_SLICE_BYTES = 1 << 16
# Of a file that is read whole, and of one line of records: a round of thousands of drives has a few MB.
MOST_BYTES, MOST_LINE_BYTES = 64 << 20, 16 << 20
_LEAST_BYTES = 10 << 20
R = TypeVar("R", RoundRecord, EventRecord, FailureRecord)
_PACKAGES = ("csd-emu", "torch", "numpy", "grpcio", "msgspec", "scikit-learn")


class RunDirectory:
    """A run directory that this process alone works on; a context manager."""

    def __init__(self, path: Path) -> None:
        """Lock the folder at `path`; see `create` and `reopen`.

        Raises:
            EnvironmentUnfit: another process works on it.
            OSError: it cannot be opened.
        """
        self.path = path
        self._broken: EnvironmentUnfit | None = None
        self._slices = 0
        self._lock = _lock(path)
        try:
            # Without a buffer: a line that could not be written is not tried again when the file is closed.
            self._lines: IO[bytes] = append_file(path / RECORDS_FILE)
        except OSError:
            os.close(self._lock)
            raise

    @classmethod
    def create(cls, runs: Path, name: str) -> RunDirectory:
        """Make ``runs/DATE-TIME-name``, with a number behind it if there is one already.

        Raises:
            EnvironmentUnfit: the folder cannot be made.
        """
        stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
        try:
            return cls(_make_folder(runs, stem))
        except OSError as error:
            raise EnvironmentUnfit(
                f"{runs}: no run directory can be made ({error}); give another with --runs"
            ) from error

    @classmethod
    def reopen(cls, path: Path) -> RunDirectory:
        """Open the directory of a run that was begun; what a killed process was writing is removed.

        Raises:
            ConfigurationError: it is none, or the run ended before its configuration was written.
            EnvironmentUnfit: another process works on it, or it cannot be written.
        """
        if not (path / JOB_FILE).is_file() or not (path / ARRAY_FILE).is_file():
            raise ConfigurationError(
                f"{path}: is no run directory with {JOB_FILE} and {ARRAY_FILE}; give one that csd-emu run has made, or "
                "start the run again if it ended before they were written"
            )
        with writing(path, "make it writable, or copy it"):
            directory = cls(path)
            for name in (CHECKPOINT_FILE, SUMMARY_FILE, WEIGHTS_FILE, TRACE_FILE, SLICES_FILE):
                remove_partial(path / name)
        return directory

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write no more records, and let go of the directory; may be done twice."""
        self._lines.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

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
        server_group: Mapping[str, Any] | None = None,
        sources: Mapping[str, str] | None = None,
        held: HeldRecords | None = None,
    ) -> None:
        """Write versions.json, array.yaml and job.yaml as resolved; job.yaml comes last, and says that all is there.

        Of one of several servers it is also written which they are (see `host.config.server_group`).

        versions.json holds the host's and the devices' facts, and each profile's figures with their sources, on which
        all device seconds of emulated drives rest; `sources`, the hashes of the user's own files; and under `HELD` what
        records each drive has.

        Raises:
            EnvironmentUnfit: they cannot be written.
        """
        versions = {
            "host": {
                "python": platform.python_version(),
                "machine": platform.machine(),
                **{package: metadata.version(package) for package in _PACKAGES},
            },
            "devices": facts,
            "profiles": profiles,
            "sources": sources or {},
            **({} if held is None else {HELD: held}),
        }
        _write_input(self.path / VERSIONS_FILE, msgspec.json.format(msgspec.json.encode(versions)))
        _write_input(self.path / ARRAY_FILE, _as_yaml(array))
        if server_group is not None:
            _write_input(self.path / SERVER_GROUP_FILE, msgspec.json.format(msgspec.json.encode(server_group)))
        self.write_job(job)

    def write_job(self, job: BaseModel) -> None:
        """Write job.yaml as resolved.

        Raises:
            EnvironmentUnfit: it cannot be written.
        """
        _write_input(self.path / JOB_FILE, _as_yaml(job))

    def write_user_file(self, name: str, source: str) -> None:
        """Write a file of the user's under `name`, so that job.yaml can be run again from here.

        Raises:
            EnvironmentUnfit: it cannot be written.
        """
        _write_input(self.path / name, source.encode())

    def append(self, record: Record) -> None:
        """Write one record; it is with the system when this returns, so that a killed run loses nothing that happened.

        Raises:
            EnvironmentUnfit: it cannot be written; nothing is written any more.
        """
        if self._broken is not None:
            raise self._broken
        path = self.path / RECORDS_FILE
        try:
            with writing(path, _go_on(path)):
                _write_all(self._lines, msgspec.json.encode(record) + b"\n")
        except EnvironmentUnfit as error:
            self._lines.close()
            self._broken = error
            raise

    def append_slices(self, slices: Iterable[SliceRecord]) -> None:
        """Write what became of slices, one per line of ``slices.jsonl``: the first `MOST_SLICES` of the run.

        Raises:
            EnvironmentUnfit: it cannot be written.
        """
        path = self.path / SLICE_LINES_FILE
        left = MOST_SLICES - self._slices
        lines = [msgspec.json.encode(each) + b"\n" for each in itertools.islice(slices, max(0, left))]
        self._slices += len(lines)
        if lines:
            with writing(path, _go_on(path)), append_file(path) as file:
                _write_all(file, b"".join(lines))

    def read_slices(self) -> list[SliceRecord]:
        """Return the slices that were written down; of a step that was taken again, its last time.

        Raises:
            CheckpointError: the file is damaged.
        """
        path, found = self.path / SLICE_LINES_FILE, dict[tuple[int, str, str, str, int], SliceRecord]()
        try:
            for line in itertools.islice(read_lines(path, _MOST_SLICE_BYTES), 2 * MOST_SLICES):
                if line.endswith(b"\n"):
                    each = msgspec.json.decode(line, type=SliceRecord)
                    found[each.step, each.device, each.direction, each.tensor, each.offset] = each
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CheckpointError(f"{path}: is damaged ({error}); remove it") from error
        return list(found.values())

    def save_checkpoint(self, checkpoint: Checkpoint, job: str) -> None:
        """Write the checkpoint of a round whose record was appended (see `host.fleet.checkpoint.save_checkpoint`)."""
        os.fsync(self._lines.fileno())  # the checkpoint must never know more than the records
        save_checkpoint(self.path / CHECKPOINT_FILE, checkpoint, job)

    def load_checkpoint(self, job: str) -> Checkpoint | None:
        """Return the checkpoint, or None (see `host.fleet.checkpoint.load_checkpoint`)."""
        return load_checkpoint(self.path / CHECKPOINT_FILE, job)

    def rewind(self, rounds: int) -> int:
        """Drop all records behind that of the last of `rounds`; return its number, 0 if none is left.

        One of several servers may have missed some, which the others trained without it.

        Raises:
            CheckpointError: the records do not hold them; nothing is dropped.
        """
        found: list[int] = []
        position = end = 0
        for line in self._read_lines():
            position += len(line)
            if (record := _decode(line)) is None or (found and found[-1] >= rounds) or not rounds:
                break
            if isinstance(record, RoundRecord):
                found.append(record.round)
                end = position
        missed = (self.path / SERVER_GROUP_FILE).exists() and found == sorted(set(found)) and found[-1:] == [rounds]
        if found != list(range(1, rounds + 1)) and not missed:
            raise CheckpointError(
                f"{self.path / RECORDS_FILE}: does not hold the {rounds} rounds of {CHECKPOINT_FILE}; restore it from "
                f"a copy, or remove {CHECKPOINT_FILE} to begin again from the first round"
            )
        self._lines.truncate(end)
        return found[-1] if found else 0

    def read_rounds(self) -> Iterator[RoundRecord]:
        """Read the rounds back that were appended, one by one: a long run's are too many to be kept.

        Raises:
            CheckpointError: the records cannot be read.
        """
        return self._records_of(RoundRecord)

    def read_failures(self) -> list[Failure]:
        """Return the failures of the user's code that the records hold."""
        return [record.failure for record in self._records_of(FailureRecord)]

    def read_refusals(self) -> dict[str, int]:
        """Return device -> contributions of it that were refused, of those that the records list."""
        return Counter(event.device for event in self._records_of(EventRecord) if event.what is EventKind.REJECTED)

    def _records_of(self, kind: type[R]) -> Iterator[R]:
        return (record for record in map(_decode, self._read_lines()) if isinstance(record, kind))

    def _read_lines(self) -> Iterator[bytes]:
        path = self.path / RECORDS_FILE
        try:
            yield from read_lines(path, MOST_LINE_BYTES)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error}); restore it") from error

    def read_summary(self) -> Summary | None:
        """Return how the run ended, or None if it has not."""
        return read_whole(self.path / SUMMARY_FILE, decode_summary, CheckpointError, "remove it")

    def finish(self, summary: Summary, weights: Mapping[str, Array]) -> None:
        """Write the final weights and summary.json, which says that the run has ended.

        Raises:
            EnvironmentUnfit: they cannot be written.
        """
        write_result(self.path / WEIGHTS_FILE, save(dict(weights)))
        write_result(self.path / SUMMARY_FILE, msgspec.json.format(msgspec.json.encode(summary)))

    def remove_end(self) -> None:
        """Remove what says that the run has ended, for it goes on: summary, timeline, report, metrics, final weights.

        Weights stay if there is no checkpoint, which holds them otherwise.

        Raises:
            EnvironmentUnfit: a file cannot be removed.
        """
        for name in (
            SUMMARY_FILE,
            TRACE_FILE,
            SLICES_FILE,
            REPORT_FILE,
            METRICS_FILE,
            *((WEIGHTS_FILE,) if (self.path / CHECKPOINT_FILE).exists() else ()),
        ):  # the summary first: it says that all is there
            try:
                (self.path / name).unlink(missing_ok=True)
            except OSError as error:
                raise EnvironmentUnfit(
                    f"{self.path / name}: cannot be removed ({error.strerror}); make {self.path} writable"
                ) from error


def write_result(path: Path, content: bytes) -> None:
    """Write a file of a run's end, in one step.

    Raises:
        EnvironmentUnfit: it cannot be written, for example because the disk is full; `path` is as it was.
    """
    write_whole(path, content, _go_on(path))


def check_writable(runs: Path) -> None:
    """Return if run directories can be made in `runs`: for a command to fail before it has begun.

    Raises:
        EnvironmentUnfit: they cannot.
    """
    existing = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    if not writable or shutil.disk_usage(existing).free <= _LEAST_BYTES:
        raise EnvironmentUnfit(f"{runs}: no run directory can be made there; free space, or give another with --runs")


def _as_yaml(config: BaseModel) -> bytes:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).encode()


def _write_input(path: Path, content: bytes) -> None:
    """Write a file without which no run can be resumed."""
    write_whole(path, content, "free space, then start the run again")


def _write_all(file: IO[bytes], content: bytes) -> None:
    """Write to a file without a buffer, which may take less at a time."""
    while content:
        content = content[file.write(content) :]


def _go_on(path: Path) -> str:
    return f"free space, then go on with csd-emu run --resume {path.parent}"


def _make_folder(runs: Path, stem: str) -> Path:
    runs.mkdir(parents=True, exist_ok=True)
    paths = (runs / (stem if number == 1 else f"{stem}-{number}") for number in itertools.count(1))
    while True:
        with contextlib.suppress(FileExistsError):
            (path := next(paths)).mkdir()
            return path


def _lock(path: Path) -> int:
    descriptor = os.open(path, FOLDER)
    if not try_lock(descriptor):
        os.close(descriptor)
        raise EnvironmentUnfit(f"{path}: another csd-emu process works on this run; wait for it, or end it")
    return descriptor


def _decode(line: bytes) -> Record | None:
    """Return the record, or None if the line is torn or none."""
    try:
        return decode_record(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
