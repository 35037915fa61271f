"""What a job learns: its data set with the field that the model takes, and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from csd_emu.util.registry import Registry
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.losses.objective import ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig
from host.config.plugins.kinds import LOSS
from host.config.plugins.plugin_loading import Plugin
from host.config.plugins.plugin_section import BuiltInSection, UserSection
from host.core.datasets import Dataset, load_dataset
from host.core.learning.default_objective import default_objective, with_loss


def load_job_dataset(job: JobConfig) -> Dataset:
    """Return the data set of a job, with the field that its model takes.

    Raises:
        DataError: it cannot be read.
    """
    return replace(load_dataset(job.data.source, job.seed), input_name=job.data.input)


def plain_options(kind: str, options: Mapping[str, Any]) -> dict[str, int | float | str | bool]:
    """Return the options of code that is sent to drives.

    Raises:
        ConfigurationError: one is no number and no text.
    """
    if wrong := [name for name, value in options.items() if not isinstance(value, int | float | str)]:
        raise ConfigurationError(f"{kind}.{wrong[0]}: is no number and no text; drives take nothing else")
    return dict(options)


def shipped_code(
    kind: Registry, section: BuiltInSection | UserSection | None, plugin: Plugin | None
) -> ShippedCode | None:
    """Return the code that a key of the job file names, as it is sent to drives; None without the key.

    Raises:
        ConfigurationError: an option cannot be sent.
    """
    named = plugin or section
    if named is None:
        return None
    own = plugin is not None and ":" not in plugin.name
    name = kind.find_entry_point(named.name) if own else named.name
    return ShippedCode(name, None if plugin is None else plugin.source, plain_options(kind.word, named.options))


def choose_objective(job: JobConfig, dataset: Dataset, loss: Plugin | None) -> ObjectiveSpec:
    """Return what a job minimises: by its own loss or that of the user, else by what its data have.

    Raises:
        ConfigurationError: the data do not say it, or the job cuts a model that has another loss than that of classes.
    """
    code = shipped_code(LOSS, job.loss, loss)
    found = default_objective(dataset) if code is None else with_loss(dataset, code)
    if job.placement != "none" and (dataset.labels is None or found.loss != ShippedCode("cross_entropy")):
        raise ConfigurationError(
            f"placement: the host's part of a model knows the cross_entropy of class numbers alone, and the loss is "
            f"{found.loss.name}, of {dataset.name}; leave placement out"
        )
    return found
