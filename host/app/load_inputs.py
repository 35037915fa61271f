"""Inputs of a job, loaded: its data set, loss, metrics and model, and who holds which records."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.util.registry import Registry
from firmware_agent.common.datafiles.record_set import IMAGE, LABEL
from firmware_agent.common.errors import ConfigurationError, DataError
from firmware_agent.common.frames.session_frames import Code, Job
from firmware_agent.common.losses.objective import ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from host.config.host_io_section import resolve_loads
from host.config.job_file import JobConfig
from host.config.plugins.kinds import AUGMENT, COLLATE, LOSS
from host.config.plugins.plugin_loading import Plugin
from host.config.plugins.plugin_section import BuiltInSection, UserSection
from host.config.resolve import NO_PLUGINS, Plugins
from host.core.datasets import Dataset, load_dataset
from host.core.device_time import find_cycles, find_models
from host.core.evaluation import Evaluator
from host.core.learning.default_objective import default_objective, with_loss
from host.core.learning.initial_weights import ModelStart
from host.fleet.shards import deal_out
from host.policies.metrics import make_metrics
from host.training.job_inputs import JobInputs
from host.training.round_exchange import job_frame

# Small, so that weights stay finite; it changes no count.
LEARNING_RATE = 1e-4
_DIGITS = 16


def load_job_dataset(job: JobConfig) -> Dataset:
    """Return the data set of a job, with the field that its model takes.

    Raises:
        DataError: it cannot be read.
    """
    return load_dataset(job.data.source, job.seed, job.data.input)


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


def choose_objective(job: JobConfig, dataset: Dataset, plugins: Plugins) -> ObjectiveSpec:
    """Return what a job minimises, of which batches: by its own loss or that of the user, else by what its data have.

    Raises:
        ConfigurationError: the data do not say it, no batches can be made of them, or the job cuts a model that has
            another loss than that of classes.
    """
    code = shipped_code(LOSS, job.loss, plugins.loss)
    found = default_objective(dataset) if code is None else with_loss(dataset, code)
    own = iter(plugins.augment)
    augment = [
        code
        for each in job.augment
        if (code := shipped_code(AUGMENT, each, next(own) if isinstance(each, UserSection) else None)) is not None
    ]
    found = replace(found, augment=tuple(augment), collate=shipped_code(COLLATE, job.collate, plugins.collate))
    for name, lengths in dataset.lengths.items() if found.collate is None else ():
        raise DataError(
            f"data.source: {dataset.name}: field {name} has {lengths.min()} to {lengths.max()} values in a record; "
            "write collate: pad, or collate: my_collate.py:function of your own, or give all records one length"
        )
    for key, value in {"collate": found.collate, "augment": augment, "data.input": found.input_fields[1:]}.items():
        if value and (job.placement != "none" or (key == "collate" and job.sync.batch_norm == "synchronised")):
            raise ConfigurationError(
                f"{key}: {'sync.batch_norm: synchronised' if job.placement == 'none' else 'placement'} is of models "
                "that take one field of records as stored; leave one of the two out"
            )
    if job.placement != "none":
        check_cut_loss(found, dataset)
    return found


def check_cut_loss(objective: ObjectiveSpec, dataset: Dataset) -> None:
    """Return if a model that is trained for `objective` can be cut.

    Raises:
        ConfigurationError: the host's part would need more of the records than their class numbers.
    """
    if dataset.labels is None or objective.loss != ShippedCode("cross_entropy"):
        raise ConfigurationError(
            "placement: the host's part of a model knows the cross_entropy of class numbers alone, for it gets nothing "
            f"else of a record, and the loss is {objective.loss.name}, of {dataset.name}; leave placement out"
        )


def step_frame(job: JobConfig, spec: ShippedCode, objective: ObjectiveSpec, optimizer: Plugin | None) -> Job:
    """Return the frame that has a drive take a job's steps alone, without what they exchange with others."""
    return msgspec.structs.replace(
        job_frame(job, spec, objective, optimizer=optimizer), learning_rate=LEARNING_RATE, batch_norm="device"
    )


def task_of(frame: Job, dataset: Dataset) -> str:
    """Return the digest of what a step costs beside model and input shape, empty for what plain tables are of.

    That is loss, optimiser, precision, what is not trained, and the form of the records; see `CalibrationKey.task`.

    Args:
        frame: of `step_frame`.
        dataset: the job's.
    """
    code: list[object] = [
        frame.loss,
        frame.optimiser,
        frame.clip_norm is not None,
        frame.freeze,
        frame.precision,
        frame.momentum > 0,
    ]
    code += [frame.collate, frame.augment]
    usual: list[object] = [Code("cross_entropy"), None, False, [], "float32", True, None, []]
    if code == usual and dataset.are_images and dataset.fields.keys() == {IMAGE, LABEL}:
        return ""
    fields = sorted((name, column.dtype.str, column.shape[1:]) for name, column in dataset.fields.items())
    return hashlib.sha256(msgspec.json.encode([*code, frame.input_fields, fields])).hexdigest()[:_DIGITS]


def make_inputs(
    config: ArrayConfig,
    job: JobConfig,
    spec: ShippedCode,
    store: CalibrationStore,
    dataset: Dataset,
    evaluator: Evaluator | None = None,
    plugins: Plugins = NO_PLUGINS,
) -> JobInputs:
    """Return a job with its data, its model, and what its steps cost on devices whose seconds are modelled.

    Args:
        config: the array.
        job: what it trains.
        spec: the job's model.
        store: the calibration tables.
        dataset: the job's.
        evaluator: of the model, if it is built already.
        plugins: the user's own code.

    Raises:
        CalibrationError: the array's clock needs a table that is missing.
        ConfigurationError: what the host asks of the drives is impossible.
        DataError: the records cannot be dealt out as the job says.
        ModelError: the model cannot be built, or does not take the data.
    """
    if job.host_io is not None:
        resolve_loads(job.host_io, config.list_devices(), job.seed, job.mode)
    objective = choose_objective(job, dataset, plugins)
    task = task_of(step_frame(job, spec, objective, plugins.optimizer), dataset)
    tables = config, spec, dataset.shape, store.of_task(task)
    models, cycles = find_models(*tables), find_cycles(*tables)
    metrics = make_metrics(job.metrics, {each.name: each for each in plugins.metrics}, objective.loss.name)
    judge = evaluator or Evaluator(
        *(spec, dataset, job.seed, objective, metrics),
        ModelStart(job.initial_weights, tuple(job.freeze), job.chosen_precision if job.client is None else None),
    )
    if job.target is not None and "accuracy" not in judge.figures:
        told = "has no class numbers, or the model no logit for each"
        raise ConfigurationError(f"target.accuracy: {dataset.name} {told}, so there is no accuracy; leave it out")
    dealt = deal_out(dataset, job.data.resolved(job.mode), config.list_nodes(), job.seed, plugins.partition)
    more: dict[str, Any] = {"cycles": cycles, "optimizer": plugins.optimizer, "task": task}
    return JobInputs(config, job, spec, dataset, objective, dealt, judge, models, **more)
