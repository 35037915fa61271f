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
from host.config.sync_section import OptimiserSection
from host.core.model_facts import Load
from host.training.host_optimiser import HostOptimiser

# What crosses between servers is single or double precision; whole numbers are double.
_SINGLE_BYTES, _DOUBLE_BYTES = 4, 8


def load_between(load: Load, job: JobConfig, config: ServersConfig) -> Load:
    """Return a load with what the optimiser remembers, where servers add up every few steps and that crosses too."""
    if config.reduce_every == 1:
        return load
    return replace(load, optimiser_bytes=optimiser_bytes(load.spec, job))


def optimiser_bytes(spec: ShippedCode, job: JobConfig) -> int:
    """Return the bytes that cross of what a job's optimiser remembers, once it has taken a step.

    Of a class of the user's own they are taken for Adam's: twice those of the parameters.

    Raises:
        ConfigurationError: there is no such optimiser.
        ModelError: the model cannot be built.
    """
    shapes = Counter(tuple(each.shape) for each in build_model(spec, job.freeze).parameters() if each.requires_grad)
    return sum(count * _bytes_of(shape, job) for shape, count in shapes.items())


def _bytes_of(shape: tuple[int, ...], job: JobConfig) -> int:
    """Return the bytes for a tensor of this shape; of most optimisers a small one says it."""
    small = tuple(min(size, 2) for size in shape)
    optimiser = _optimiser(small, job)
    if optimiser.block_bytes is None:  # its state has shapes of its own
        return sum(array.size * _width(array) for array in _optimiser(shape, job).state_after_a_step().values())
    state = optimiser.state_after_a_step().values()
    return sum((math.prod(shape) if array.shape == small else array.size) * _width(array) for array in state)


def _optimiser(shape: tuple[int, ...], job: JobConfig) -> HostOptimiser:
    parameters = {"parameter": np.zeros(shape, job.chosen_precision)}
    section = job.chosen_optimiser
    section = OptimiserSection(name="Adam") if ":" in section.name else section
    return HostOptimiser(parameters, section, job.learning_rate, job.momentum, job.chosen_clip_norm)


def _width(array: Array) -> int:
    return _SINGLE_BYTES if array.dtype == np.float32 else _DOUBLE_BYTES
