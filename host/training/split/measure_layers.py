"""Seconds of a model's layers on this machine, by its own clock: for drives and a host that are processes here."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional

from csd_emu.util.record_shape import Shape
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.layer_costs import trace_layers
from firmware_agent.common.layer_seconds import layer_times, measure_layers
from firmware_agent.common.models import build_model
from firmware_agent.common.shipped_code import ShippedCode

# Passes of which the median counts, as many watched as not, after one of each that does not.
PASSES = 3


LayerSeconds = tuple[tuple[float, ...], tuple[float, ...]]
"""Seconds of one pass with a batch, of each layer: forward, backward."""


def measure(
    spec: ShippedCode,
    shape: Shape,
    batch_size: int,
    precision: str = "float32",
    now: Callable[[], float] = time.perf_counter,
) -> LayerSeconds:
    """Return the median of `PASSES` forward and backward passes on records that mean nothing, watching left out.

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

        def loss() -> torch.Tensor:
            return functional.cross_entropy(model(images), labels)

        steps, passes = [], []
        for _ in range(1 + PASSES):  # in turn, so that both see the same of what else this machine does
            model.zero_grad()
            steps.append(_whole(loss, now))
            model.zero_grad()
            passes.append(measure_layers(model, loss, now, layers))
    times = layer_times(layers, passes[1:], steps[1:])
    return tuple(each.forward_seconds for each in times.layers), tuple(each.backward_seconds for each in times.layers)


def _whole(loss: Callable[[], torch.Tensor], now: Callable[[], float]) -> PhaseSeconds:
    """Return the seconds of one pass that nobody watches."""
    begin = now()
    value = loss()
    turn = now()
    value.backward()  # type: ignore[no-untyped-call]
    return PhaseSeconds(forward=turn - begin, backward=now() - turn)
