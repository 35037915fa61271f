"""Bytes of an optimiser's state for a model, counted without allocating them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from csd_emu.config.servers_file import ServersConfig
from firmware_agent.common.models import build_model
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array
from host.config.job_file import JobConfig
from host.config.plugins.plugin_loading import Plugin
from host.core.model_facts import Load
from host.training.host_optimiser import HostOptimiser

# What crosses between servers is single or double precision; whole numbers are double.
_SINGLE_BYTES, _DOUBLE_BYTES = 4, 8


def load_between(load: Load, job: JobConfig, config: ServersConfig, own: Plugin | None = None) -> Load:
    """Return a load with what the optimiser remembers, where servers add up every few steps and that crosses too.

    `own` is the optimiser, if it is a class of the user's own.
    """
    if config.reduce_every == 1:
        return load
    return replace(load, optimiser_bytes=optimiser_bytes(load.spec, job, own))


def optimiser_bytes(spec: ShippedCode, job: JobConfig, own: Plugin | None = None) -> int:
    """Return the bytes that cross of what a job's optimiser remembers, once it has taken a step (see `load_between`).

    Raises:
        ConfigurationError: there is no such optimiser.
        PluginError: a class of the user's own cannot be made.
        ModelError: the model cannot be built.
    """
    shapes = Counter(tuple(each.shape) for each in build_model(spec, job.freeze).parameters() if each.requires_grad)
    return sum(count * _bytes_of(shape, job, own) for shape, count in shapes.items())


def _bytes_of(shape: tuple[int, ...], job: JobConfig, own: Plugin | None) -> int:
    """Return the bytes for a tensor of this shape; of most optimisers a small one says it."""
    small = tuple(min(size, 2) for size in shape)
    optimiser = _optimiser(small, job, own)
    if optimiser.block_bytes is None:  # its state has shapes of its own
        return sum(array.size * _width(array) for array in _optimiser(shape, job, own).state_after_a_step().values())
    state = optimiser.state_after_a_step().values()
    return sum((math.prod(shape) if array.shape == small else array.size) * _width(array) for array in state)


def _optimiser(shape: tuple[int, ...], job: JobConfig, own: Plugin | None) -> HostOptimiser:
    parameters = {"parameter": np.zeros(shape, job.chosen_precision)}
    return HostOptimiser(parameters, job.chosen_optimiser, job.learning_rate, job.momentum, job.chosen_clip_norm, own)


def _width(array: Array) -> int:
    return _SINGLE_BYTES if array.dtype == np.float32 else _DOUBLE_BYTES
