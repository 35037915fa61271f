"""Seconds of a model's layers on this machine, by its own clock: for drives and a host that are processes here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from csd_emu.shape import Shape
from firmware_agent.layer_costs import measure_layers, trace_layers
from firmware_agent.models import ModelSpec, build_model

# Passes of which the median counts, after one that does not.
PASSES = 3


@dataclass(frozen=True)
class Measured:
    """One pass with a batch.

    Attributes:
        forward_seconds, backward_seconds: of the whole model.
        layer_seconds: (forward, backward) of each layer.
    """

    forward_seconds: float
    backward_seconds: float
    layer_seconds: tuple[tuple[float, ...], tuple[float, ...]]


def measure(
    spec: ModelSpec,
    shape: Shape,
    batch_size: int,
    precision: str = "float32",
    now: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Return the median of `PASSES` forward and backward passes on records that mean nothing.

    Raises:
        ModelError: the model cannot be built.
    """
    kind = torch.float64 if precision == "float64" else torch.float32
    with torch.random.fork_rng(devices=[]):
        model = build_model(spec).to(kind)
        images = torch.rand(batch_size, *shape, dtype=kind)
        layers = trace_layers(model, images[:1])
        model.train(batch_size > 1)  # one value per channel has no statistics
        labels = torch.zeros(batch_size, dtype=torch.int64)
        passes = [
            measure_layers(model, lambda: functional.cross_entropy(model(images), labels), now, layers)
            for _ in range(PASSES + 1)
        ][1:]
    forward = tuple(statistics.median(each[place].forward_seconds for each in passes) for place in range(len(layers)))
    backward = tuple(statistics.median(each[place].backward_seconds for each in passes) for place in range(len(layers)))
    return Measured(sum(forward), sum(backward), (forward, backward))
