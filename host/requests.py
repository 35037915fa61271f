"""From file names on the command line to checked requests; nothing is started here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from csd_emu.array import ArrayConfig
from csd_emu.config import load_config, parse_config
from firmware_agent.errors import ConfigurationError
from host.communication.section import CommunicationSection, ScheduleName
from host.job import DataSection, JobConfig, check_mode, load_job
from host.lifecycle import ArrayRequest
from host.plugins.plugins import load_plugins
from host.tuning.sections import TunerName

if TYPE_CHECKING:
    from host.run_request import RunRequest
    from host.servers.hall import Hall

DEFAULT_DATA = DataSection.model_validate({"source": "digits", "partition": {"dirichlet": 0.5}, "private": 1.0})


def read_array(path: Path, engine: str | None = None) -> ArrayConfig:
    """Read an array file; `engine` replaces the file's, if given.

    Raises:
        ConfigurationError: the file breaks a rule.
    """
    config = load_config(path, ArrayConfig)
    if engine is not None:
        if any(group.engine is not None for group in config.devices):
            raise ConfigurationError(
                f"--engine {engine}: the groups of {path} name their own engines; leave it out, or change the file"
            )
        config = parse_config(config.model_dump(mode="json") | {"engine": engine}, ArrayConfig, "--engine")
    if config.inventory is None:
        return config
    from csd_emu.remote.members import resolve_members  # most arrays have no real drive

    return resolve_members(config, path.parent, str(path))


def read_run(
    job_path: Path,
    array_path: Path | None,
    engine: str | None = None,
    tuner: TunerName | None = None,
    schedule: ScheduleName | None = None,
    placement: str | None = None,
    planner: Mapping[str, Any] | None = None,
    servers: tuple[Path, str] | Path | None = None,
) -> RunRequest:
    """Read a job and its array, and check that they fit together.

    `engine`, `tuner`, the `schedule` of the job's communication, its `placement` and keys of its `planner` replace the
    files', if given. Another schedule than the file's has its own slice and credit. In place of an array `servers` may
    be given: the servers file, and which of them this is, or what a run over several servers has written of them.

    Raises:
        ConfigurationError: they do not.
    """
    from host.run_request import check_run  # torch: whoever reads an array alone has no need of it

    hall, config = _read_drives(array_path, servers, engine)
    job, spec = load_job(job_path)
    if tuner is not None:
        job = job.model_copy(update={"tuner": tuner})
        check_mode(job, "--tuner")
    if schedule is not None and schedule != job.communication.schedule:
        section = CommunicationSection(schedule=schedule, overlap=job.communication.overlap)
        job = job.model_copy(update={"communication": section})
        check_mode(job, "--comm")
    if placement is not None:
        job = parse_config(job.model_dump(mode="json") | {"placement": placement}, JobConfig, "--placement")
        check_mode(job, "--placement")
    if planner is not None:
        content = job.model_dump(mode="json")
        content["planner"] = (content["planner"] or {}) | dict(planner)
        job = parse_config(content, JobConfig, "the options")
        check_mode(job, "the options")
    return check_run(config, job, spec, load_plugins(job, job_path), hall)


def _read_drives(
    array_path: Path | None, servers: tuple[Path, str] | Path | None, engine: str | None
) -> tuple[Hall | None, ArrayConfig]:
    """Return the servers, if there are several, and the array."""
    if servers is None:
        if array_path is None:
            raise ConfigurationError("neither an array nor servers are given; name one of both")
        return None, read_array(array_path, engine)
    from host.servers.hall import load_hall, read_hall  # most runs have one server

    hall = load_hall(servers) if isinstance(servers, Path) else read_hall(*servers, engine)
    return hall, hall.own


def read_up(array_path: Path, job_path: Path | None, engine: str | None = None) -> ArrayRequest:
    """Read an array and the data that it shall hold: a job's, else the quickstart's.

    Raises:
        ConfigurationError: a file breaks a rule.
    """
    if job_path is not None:
        return read_run(job_path, array_path, engine).array
    return ArrayRequest(read_array(array_path, engine), DEFAULT_DATA, 0)
