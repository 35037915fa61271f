"""From file names on the command line to the plain values of a run and its plug-ins; nothing is loaded but these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.engine_names import AS_IN_FILE, ArrayChanges
from csd_emu.util.registry import Registry
from firmware_agent.common.errors import ConfigurationError, PluginError
from firmware_agent.common.shipped_code import ShippedCode
from host.config.array_files import read_array
from host.config.communication_section import CommunicationSection
from host.config.job_file import JobConfig, check_mode, load_job
from host.config.plugins.kinds import (
    AUGMENT,
    CLIENT,
    COLLATE,
    LOSS,
    METRIC,
    OPTIMIZER,
    PARTITION,
    SCHEDULE,
    STRATEGY,
    TUNER,
)
from host.config.plugins.plugin_loading import Plugin, check_plugin, load_plugin
from host.config.plugins.plugin_section import UserSection
from host.config.server_group import ServerGroup, load_server_group, read_server_group


@dataclass(frozen=True)
class Plugins:
    """What of a job is the user's own code beside the model; None for what is built in."""

    strategy: Plugin | None = None
    tuner: Plugin | None = None
    loss: Plugin | None = None
    metrics: tuple[Plugin, ...] = ()
    partition: Plugin | None = None
    client: Plugin | None = None
    optimizer: Plugin | None = None
    schedule: Plugin | None = None
    collate: Plugin | None = None
    augment: tuple[Plugin, ...] = ()

    def __iter__(self) -> Iterator[Plugin]:
        """Iterate over those that there are."""
        trained = self.loss, self.client, self.optimizer, self.schedule
        every = (self.strategy, self.tuner, *trained, self.collate, *self.augment, *self.metrics, self.partition)
        return (each for each in every if each is not None)

    def portable(self, job: JobConfig) -> JobConfig:
        """Return the job as it can be run from a folder that holds the plug-ins' files under their own names."""
        names = {each.name: each.portable_name for each in self}

        def moved(value: Any) -> Any:
            if isinstance(value, list):
                return [moved(each) for each in value]
            return value.model_copy(update={"name": names[value.name]}) if isinstance(value, UserSection) else value

        update = {each.kind.word: moved(getattr(job, each.kind.word)) for each in self if each is not self.partition}
        if self.partition is not None:
            partition = job.data.partition.model_copy(update={"function": self.partition.portable_name})
            update["data"] = job.data.model_copy(update={"partition": partition})
        return job.model_copy(update=update)

    @property
    def facts(self) -> list[list[str]]:
        """What of them decides a run's trajectory beside the job file."""
        return [[each.kind.word, each.code_sha256] for each in self if each.kind is not METRIC]


NO_PLUGINS = Plugins()


def load_plugins(job: JobConfig, path: Path) -> Plugins:
    """Load the plug-ins of the job file at `path`: those of its mode.

    Raises:
        PluginError: one is broken, or a built-in name is declared by an installed package too.
    """
    try:
        augment, metrics = (
            tuple(own for each in sections if (own := _load(kind, each, path)) is not None)
            for kind, sections in ((AUGMENT, job.augment), (METRIC, job.metrics or ()))
        )
        found = Plugins(
            loss=_load(LOSS, job.loss, path),
            metrics=metrics,
            partition=_load(PARTITION, job.data.partition.own, path),
            optimizer=_load(OPTIMIZER, job.own_optimizer, path),
            schedule=_load(SCHEDULE, job.schedule, path),
            collate=_load(COLLATE, job.collate, path),
            augment=augment,
        )
        if job.mode == "sync":
            return replace(found, tuner=_load(TUNER, job.tuner, path))
        return replace(found, strategy=_load(STRATEGY, job.strategy, path), client=_load(CLIENT, job.client, path))
    except PluginError as error:
        raise PluginError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error


def check_plugins(job: JobConfig, path: Path) -> None:
    """Check what of them can be checked without importing them (see `load_plugins`)."""
    of_mode = (TUNER, job.tuner) if job.mode == "sync" else (STRATEGY, job.strategy)
    every = (
        of_mode,
        (OPTIMIZER, job.own_optimizer),
        (LOSS, job.loss),
        (SCHEDULE, job.schedule),
        (CLIENT, job.client),
        (COLLATE, job.collate),
        *((AUGMENT, each) for each in job.augment),
        (PARTITION, job.data.partition.own),
        *((METRIC, each) for each in job.metrics or ()),
    )
    try:
        for kind, section in every:
            if isinstance(section, UserSection):
                check_plugin(kind, section, path.parent)
    except PluginError as error:
        raise PluginError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error


def _load(kind: Registry, section: object, path: Path) -> Plugin | None:
    if isinstance(section, UserSection):
        return load_plugin(kind, section, path.parent)
    kind.check_not_shadowed(section if isinstance(section, str) else str(getattr(section, "name", "")))
    return None


def check_files(plugins: Plugins, sources: Mapping[str, str]) -> None:
    """Return if a run directory can keep the files of model, data and plug-ins beside each other.

    Args:
        plugins: of the job.
        sources: name of a model or data set in the job file, ``my_file.py:name`` -> text of the file.

    Raises:
        PluginError: two different files have the same name.
    """
    own = {each.name: each.source for each in plugins if each.file_name and each.source}
    files: dict[str, str] = {}
    for name, text in [*sources.items(), *own.items()]:
        file_name = Path(name.rpartition(":")[0]).name
        if files.setdefault(file_name, text) != text:
            raise PluginError(f"{name}: another file of the job has the same name {file_name}; rename one of them")


@dataclass(frozen=True)
class ResolvedRun:
    """What the files of a run say.

    Attributes:
        config: this server's array.
        job: what is trained.
        spec: its model.
        plugins: the user's own strategy or tuner.
        server_group: the servers that train together; None if there is one.
    """

    config: ArrayConfig
    job: JobConfig
    spec: ShippedCode
    plugins: Plugins = NO_PLUGINS
    server_group: ServerGroup | None = None

    @property
    def whole(self) -> ArrayConfig:
        """The array of all servers' drives, for which the run is planned."""
        return self.config if self.server_group is None else self.server_group.whole


@dataclass(frozen=True)
class JobChanges:
    """What the command line has in place of a job file's keys.

    Attributes:
        keys: key -> value, with dots between a section and its key.
        schedule: of the communication; another one than the file's has its own slice and credit. None: the file's.
    """

    keys: Mapping[str, Any] = field(default_factory=dict)
    schedule: str | None = None

    def read(self, path: Path) -> tuple[JobConfig, ShippedCode]:
        """Return the job of a file with them, and its model (see `load_job`)."""
        job, spec = load_job(path, self.keys)
        return self.apply(job), spec

    def apply(self, job: JobConfig) -> JobConfig:
        """Return a job, which has the keys, with the schedule.

        Raises:
            ConfigurationError: it does not fit the job.
        """
        if self.schedule is not None and self.schedule != job.communication.schedule:
            section = CommunicationSection(schedule=self.schedule, overlap=job.communication.overlap)
            job = job.model_copy(update={"communication": section})
            check_mode(job, "--comm")
        return job


UNCHANGED = JobChanges()


def resolve_run(
    job_path: Path,
    array_path: Path | None,
    array_changes: ArrayChanges = AS_IN_FILE,
    changes: JobChanges = UNCHANGED,
    servers: tuple[Path, str] | Path | None = None,
) -> ResolvedRun:
    """Read a job and its array or servers; no data are loaded, and no model is built.

    `array_changes` replace keys of the array file, and `changes` keys of the job's. In place of an array `servers` may
    be given: the servers file, and which of them this is, or what a run over several servers has written of them.

    Raises:
        ConfigurationError: a file breaks a rule, or the job cannot be trained over several servers.
    """
    return resolve_job(job_path, read_drives(array_path, servers, array_changes), changes)


def resolve_job(
    job_path: Path, drives: tuple[ServerGroup | None, ArrayConfig], changes: JobChanges = UNCHANGED
) -> ResolvedRun:
    """Read a job that is trained on `drives` that were read before; see `resolve_run`."""
    server_group, config = drives
    job, spec = changes.read(job_path)
    plugins = load_plugins(job, job_path)
    return ResolvedRun(config, job if server_group is None else fit_job(job), spec, plugins, server_group)


def read_drives(
    array_path: Path | None, servers: tuple[Path, str] | Path | None, changes: ArrayChanges
) -> tuple[ServerGroup | None, ArrayConfig]:
    """Return the servers, if there are several, and the array; a file that is a pipe can be read once.

    Raises:
        ConfigurationError: a file breaks a rule.
    """
    if servers is None:
        return None, read_array(array_path, changes)
    server_group = load_server_group(servers) if isinstance(servers, Path) else read_server_group(*servers, changes)
    return server_group, server_group.own


def fit_job(job: JobConfig) -> JobConfig:
    """Return the job as it is trained over several servers: without overlap where that was left to us.

    Raises:
        ConfigurationError: it cannot.
    """
    one = "or train on one server, with --array in place of --servers"
    refused = {
        f"mode: {job.mode}: servers add up gradients step by step; use mode: sync": job.mode != "sync",
        "placement: the host's part of a model is one server's; leave it out": job.placement != "none",
        "sync.batch_norm: synchronised: statistics are exchanged within a server; use device or frozen": (
            job.sync.batch_norm == "synchronised"
        ),
        "host_io: drives of one server serve its host; leave it out": job.host_io is not None,
        "communication.overlap: a step's weights are there when all servers have returned; leave it out": (
            job.communication.overlap is True
        ),
    }
    for reason, hit in refused.items():
        if hit:
            raise ConfigurationError(f"{reason}, {one}")
    return job.model_copy(update={"communication": job.communication.model_copy(update={"overlap": False})})
