"""Request of `csd-emu simulate`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.servers_file import ServersConfig
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.profile import End, RatioName
from csd_emu.util.config_files import load_config
from csd_lab.simulate.nodes import make_nodes
from csd_lab.simulate.tree import Tree, array_tree, make_tree
from firmware_agent.common.errors import ConfigurationError
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
        config: the servers; None for one array by itself.
        arrays: path as the servers file has it -> the array; of an array by itself that one.
        job: what is trained, the disturbances, the tuner, and the seed of what fails.
        load: its bytes.
        steps: how many.
        drives: of an array by itself, in place of its own, if it was given.
        plugin: the tuner, if it is one of the user's own.
    """

    config: ServersConfig | None
    arrays: Mapping[str, ArrayConfig]
    job: JobConfig
    load: Load
    steps: int
    drives: int | None = None
    plugin: Plugin | None = None

    @property
    def name(self) -> str:
        """In the servers file, or in that of the array by itself."""
        return self.config.name if self.config is not None else next(iter(self.arrays.values())).name

    def tree(self, store: CalibrationStore, ratio: RatioName, end: End | None = None) -> Tree:
        """Return the nodes, if hosts are worth the end `ratio` of their band and profiles stand at `end` of theirs.

        Raises:
            CalibrationError: a table is missing or damaged.
            ConfigurationError: the smallest batch does not fit into a device, or there are too many drives.
        """
        if self.config is not None:
            return make_tree(self.config, self.arrays, self.load, store, self.job.sync, ratio, end)
        (array,) = self.arrays.values()
        return array_tree(make_nodes(array, self.load, store, self.job.sync, ratio, self.drives, end))


def read_simulation(
    job_path: Path,
    array_path: Path | None,
    servers_path: Path | None,
    tuner: str | None,
    drives: int | None,
    steps: int,
) -> SimulationRequest:
    """Read the files of a simulation: of an array, or of servers with one each.

    Raises:
        ConfigurationError: a file breaks a rule, both are given or none is, the job is not synchronous or has
            `host_io`, or a number is out of range.
    """
    files = [path for path in (array_path, servers_path) if path is not None]
    if len(files) != 1:
        raise ConfigurationError("give either --array ARRAY.YAML or --servers SERVERS.YAML")
    if servers_path is not None and drives is not None:
        raise ConfigurationError("--drives is for one array; in a servers file, say how many each array has")
    (file,) = files
    if servers_path is None:
        config, arrays = None, {str(file): read_array(file)}
    else:
        config = load_config(file, ServersConfig)
        arrays = {path: read_array(file.parent / path) for path in {group.array: None for group in config.servers}}
    job, spec = load_job(job_path)
    job = job if tuner is None else job.model_copy(update={"tuner": tuner})
    if job.mode != "sync":
        raise ConfigurationError("mode: only synchronous training can be simulated; write mode: sync in the job file")
    if job.host_io is not None:
        raise ConfigurationError("host_io: a simulation knows no commands of the host; leave host_io out")
    if not 1 <= steps <= MOST_STEPS:
        raise ConfigurationError(f"--steps {steps}: must be between 1 and {MOST_STEPS}")
    load = inspect_load(spec, load_dataset(job.data.source, job.seed, job.data.input).shape, job.freeze)
    plugins = load_plugins(job, job_path)
    load = load if config is None else load_between(load, job, config, plugins.optimizer)
    return SimulationRequest(config, arrays, job, load, steps, drives, plugins.tuner)
