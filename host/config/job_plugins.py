"""All plug-ins of one job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from csd_emu.util.registry import Registry
from firmware_agent.common.errors import PluginError
from host.config.job_file import JobConfig
from host.config.plugins.kinds import STRATEGY, TUNER
from host.config.plugins.plugin_loading import Plugin, check_plugin, load_plugin
from host.config.plugins.plugin_section import UserSection


@dataclass(frozen=True)
class Plugins:
    """What of a job is the user's own code on the host; None for what is built in."""

    strategy: Plugin | None = None
    tuner: Plugin | None = None

    def __iter__(self) -> Iterator[Plugin]:
        """Iterate over those that there are."""
        return (each for each in (self.strategy, self.tuner) if each is not None)

    def portable(self, job: JobConfig) -> JobConfig:
        """Return the job as it can be run from a folder that holds the plug-ins' files under their own names."""
        renamed = {
            each.kind.word: getattr(job, each.kind.word).model_copy(update={"name": each.portable_name})
            for each in self
            if each.source is not None
        }
        return job.model_copy(update=renamed)

    @property
    def facts(self) -> list[list[str]]:
        """What of them decides a run's trajectory beside the job file."""
        return [[each.kind.word, each.code_sha256] for each in self]


NO_PLUGINS = Plugins()


def load_plugins(job: JobConfig, path: Path) -> Plugins:
    """Load the plug-ins of the job file at `path`: those of its mode.

    Raises:
        PluginError: one is broken, or a built-in name is declared by an installed package too.
    """
    try:
        if job.mode == "sync":
            return Plugins(tuner=_load(TUNER, job.tuner, path))
        return Plugins(strategy=_load(STRATEGY, job.strategy, path))
    except PluginError as error:
        raise PluginError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error


def check_plugins(job: JobConfig, path: Path) -> None:
    """Check what of them can be checked without importing them (see `load_plugins`)."""
    kind, section = (TUNER, job.tuner) if job.mode == "sync" else (STRATEGY, job.strategy)
    try:
        if isinstance(section, UserSection):
            check_plugin(kind, section, path.parent)
    except PluginError as error:
        raise PluginError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error


def _load(kind: Registry, section: object, path: Path) -> Plugin | None:
    if isinstance(section, UserSection):
        return load_plugin(kind, section, path.parent)
    kind.check_not_shadowed(section if isinstance(section, str) else str(getattr(section, "name", "")))
    return None


def check_files(plugins: Plugins, model: str, source: str | None) -> None:
    """Return if a run directory can keep the files of model and plug-ins beside each other.

    Raises:
        PluginError: two different files have the same name.
    """
    files = {Path(model.partition(":")[0]).name: source} if source is not None else {}
    for each in plugins:
        if each.file_name and each.source and files.setdefault(each.file_name, each.source) != each.source:
            raise PluginError(f"{each}: the model's file has the same name {each.file_name}; rename one of them")
