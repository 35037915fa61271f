"""What `csd-emu simulate` is asked for, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from csd_emu.array import ArrayConfig
from firmware_agent.errors import ConfigurationError
from firmware_agent.models import ModelSpec
from host.datasets import load_dataset
from host.job import JobConfig, TunerName, load_job
from host.requests import read_array
from host.simulation.load import inspect_load
from host.simulation.nodes import Load

MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class SimulationRequest:
    """What to simulate.

    Attributes:
        config: the array.
        job: what is trained, and the disturbances.
        load: its bytes.
        tuner: in place of the job's, if it was given.
        drives: in place of the array's, if it was given.
        steps: how many.
    """

    config: ArrayConfig
    job: JobConfig
    load: Load
    tuner: TunerName
    drives: int | None
    steps: int


def read_simulation(
    job_path: Path, array_path: Path, tuner: TunerName | None, drives: int | None, steps: int
) -> SimulationRequest:
    """Read the files of a simulation.

    Raises:
        ConfigurationError: a file breaks a rule, or the job is not synchronous.
    """
    config = read_array(array_path)
    job, spec = load_job(job_path)
    return make_request(config, job, spec, tuner, drives, steps)


def make_request(
    config: ArrayConfig, job: JobConfig, spec: ModelSpec, tuner: TunerName | None, drives: int | None, steps: int
) -> SimulationRequest:
    """Return a checked request.

    Raises:
        ConfigurationError: the job is not synchronous, or a number is out of range.
    """
    if job.mode != "sync":
        raise ConfigurationError("mode: only synchronous training can be simulated; write mode: sync in the job file")
    if not 1 <= steps <= MOST_STEPS:
        raise ConfigurationError(f"--steps {steps}: must be between 1 and {MOST_STEPS}")
    _, channels, height, width = load_dataset(job.data.source, job.seed).images.shape
    load = inspect_load(spec, (channels, height, width))
    return SimulationRequest(config, job, load, tuner or job.tuner, drives, steps)
