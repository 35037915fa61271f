"""Request of `csd-emu simulate`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.servers_file import ServersConfig
from csd_emu.util.config_files import load_config
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.models import ModelSpec
from host.config.array_files import read_array
from host.config.job_file import JobConfig, load_job
from host.config.plugins.plugin_loading import Plugin
from host.config.resolve import load_plugins
from host.core.datasets import load_dataset
from host.core.model_facts import Load, inspect_load
from host.training.optimiser_bytes import load_between

MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class SimulationRequest:
    """What to simulate.

    Attributes:
        config: the array.
        job: what is trained, and the disturbances.
        load: its bytes.
        tuner: name of the tuner, which may be given in place of the job's.
        drives: in place of the array's, if it was given.
        steps: how many.
        plugin: that tuner, if it is one of the user's own.
    """

    config: ArrayConfig
    job: JobConfig
    load: Load
    tuner: str
    drives: int | None
    steps: int
    plugin: Plugin | None = None


@dataclass(frozen=True)
class ServersRequest:
    """What to simulate of several servers.

    Attributes:
        config: the servers.
        arrays: path as the servers file has it -> the array.
        job: what is trained, the disturbances, and the seed of what fails.
        load: its bytes.
        tuner: name of the tuner, which may be given in place of the job's.
        steps: how many.
        plugin: that tuner, if it is one of the user's own.
    """

    config: ServersConfig
    arrays: Mapping[str, ArrayConfig]
    job: JobConfig
    load: Load
    tuner: str
    steps: int
    plugin: Plugin | None = None


def read_simulation(
    job_path: Path, array_path: Path, tuner: str | None, drives: int | None, steps: int
) -> SimulationRequest:
    """Read the files of a simulation.

    Raises:
        ConfigurationError: a file breaks a rule, or the job is not synchronous.
    """
    config = read_array(array_path)
    job, spec = _read_job(job_path, tuner)
    return make_request(config, job, spec, drives, steps, load_plugins(job, job_path).tuner)


def read_servers_simulation(job_path: Path, servers_path: Path, tuner: str | None, steps: int) -> ServersRequest:
    """Read the files of a simulation of several servers.

    Raises:
        ConfigurationError: a file breaks a rule, or the job is not synchronous.
    """
    config = load_config(servers_path, ServersConfig)
    paths = dict.fromkeys(group.array for group in config.servers)
    arrays = {path: read_array(servers_path.parent / path) for path in paths}
    job, spec = _read_job(job_path, tuner)
    load = load_between(_load_of(job, spec, steps), job, config)
    return ServersRequest(config, arrays, job, load, job.tuner_name, steps, load_plugins(job, job_path).tuner)


def make_request(
    config: ArrayConfig, job: JobConfig, spec: ModelSpec, drives: int | None, steps: int, plugin: Plugin | None = None
) -> SimulationRequest:
    """Return a checked request.

    Raises:
        ConfigurationError: the job is not synchronous, or a number is out of range.
    """
    load = _load_of(job, spec, steps)
    return SimulationRequest(config, job, load, job.tuner_name, drives, steps, plugin)


def _read_job(job_path: Path, tuner: str | None) -> tuple[JobConfig, ModelSpec]:
    job, spec = load_job(job_path)
    return (job if tuner is None else job.model_copy(update={"tuner": tuner})), spec


def _load_of(job: JobConfig, spec: ModelSpec, steps: int) -> Load:
    if job.mode != "sync":
        raise ConfigurationError("mode: only synchronous training can be simulated; write mode: sync in the job file")
    if not 1 <= steps <= MOST_STEPS:
        raise ConfigurationError(f"--steps {steps}: must be between 1 and {MOST_STEPS}")
    _, channels, height, width = load_dataset(job.data.source, job.seed).images.shape
    return inspect_load(spec, (channels, height, width))
