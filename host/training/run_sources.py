"""The user's own files in a run directory: their hashes are compared before any of them is imported."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from firmware_agent.common.atomic_files import read_file
from firmware_agent.common.errors import CheckpointError
from host.config.job_file import JobConfig, read_job
from host.config.plugins.plugin_section import UserSection
from host.core.owned_files import SAFE_VARIABLE, read_whole
from host.core.readers.source_names import file_of

SOURCES = "sources"
_MOST_BYTES = 64 << 20


class _Versions(msgspec.Struct):
    """Of versions.json, what is needed here."""

    sources: dict[str, str] | None = None


def hash_sources(files: Mapping[str, str]) -> dict[str, str]:
    """Return name -> SHA-256, in hexadecimal, of the texts of the user's files."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}


def check_sources(directory: Path, job_file: str, versions_file: str, trusted: bool) -> None:
    """Return if the files that the directory's job names are as the run had them; nothing is imported.

    Args:
        directory: of the run.
        job_file: name of the job file in it.
        versions_file: name of the file with the hashes.
        trusted: take files of which no hash was written down as they are.

    Raises:
        CheckpointError: one was changed, lies elsewhere, or its hash was not written down.
    """
    names = _user_files(read_job(directory / job_file), directory)
    decode = msgspec.json.Decoder(_Versions).decode
    remedy = "restore it from a copy"
    versions = read_whole(directory / versions_file, decode, CheckpointError, remedy) if names else _Versions({})
    known = None if versions is None else versions.sources
    if known is None and not trusted:
        raise CheckpointError(
            f"{directory / versions_file}: does not say what {', '.join(names)} was when the run began (an older "
            "csd-emu wrote it); look at the code, and give --trust to run it as it is; if the directory is another "
            f"user's, put it into ${SAFE_VARIABLE} as well"
        )
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(
                f"{directory / job_file}: {name} lies outside of the run directory; name a file in it"
            )
        try:
            digest = hashlib.sha256(read_file(directory / name, _MOST_BYTES)).hexdigest()
        except OSError as error:
            raise CheckpointError(f"{directory / name}: cannot be read ({error}); restore it from a copy") from error
        if known is not None and known.get(name) != digest:
            raise CheckpointError(
                f"{directory / name}: is another than the run began with (its sha256 differs), so nothing of it was "
                "run: undo the change, or begin a new run"
            )


def _user_files(job: JobConfig, directory: Path) -> list[str]:
    sections = (job.strategy, job.tuner, job.loss, job.client, job.data.partition.own, *(job.metrics or ()))
    named = [job.model, *(each.name for each in sections if isinstance(each, UserSection))]
    if file_of(job.data.source) is not None:
        named.append(job.data.source.removeprefix(f"{directory.absolute()}/"))
    parts = [name.rpartition(":") for name in named]
    return [where for where, colon, _ in parts if colon and where.endswith(".py")]
