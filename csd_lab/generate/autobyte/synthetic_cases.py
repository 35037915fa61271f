"""Synthetic models and links that the network is trained on. The caller passes the generator. Pure."""

from __future__ import annotations

import numpy as np

from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, TensorCost
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from host.policies.transfer.link_conditions import Conditions

# What cases are drawn from; sizes and times are log-uniform between the two. Wider than what the benches have.
LAYERS = (3, 40)
MODEL_BYTES = (5e5, 3e7)
PARTICIPANTS = (1, 12)
WIRE_OVER_COMPUTE = (0.1, 10.0)
LATENCY_SECONDS = (3e-5, 3e-3)
SLICE_SECONDS = (3e-5, 1.5e-3)
BLOCK_BYTES = (16 << 10, 512 << 10)
BYTES_PER_SECOND = (5e6, 1e9)
_BIAS_SHARE = 0.3


def draw_conditions(generator: np.random.Generator) -> Conditions:
    """Draw a model, drives and a link.

    The bandwidth is drawn; the compute seconds follow from it and from how much longer or shorter the wire takes.
    """
    participants = round(_log_uniform(generator, *PARTICIPANTS))
    bandwidth = _log_uniform(generator, *BYTES_PER_SECOND)
    sizes = _layer_bytes(generator)
    wire_seconds = sum(sizes) * participants / bandwidth
    compute_seconds = wire_seconds / _log_uniform(generator, *WIRE_OVER_COMPUTE)
    latency, slice_seconds = (_log_uniform(generator, *bounds) for bounds in (LATENCY_SECONDS, SLICE_SECONDS))
    link = SharedLink(bandwidth, latency, slice_seconds)
    block_bytes = 2 ** round(np.log2(_log_uniform(generator, *BLOCK_BYTES)))
    return Conditions(draw_costs(generator, sizes, compute_seconds), participants, link, block_bytes)


def draw_costs(generator: np.random.Generator, layer_bytes: list[int], compute_seconds: float) -> Costs:
    """Draw how the compute seconds are spread over layers of these bytes, and cut off some of their biases.

    A layer's share falls or rises with its depth (convolutions are dearest in front, where maps are large) or follows
    its bytes (dense layers, attention), jittered; its backward pass takes about twice its forward pass.
    """
    count = len(layer_bytes)
    depth = np.linspace(0.0, 1.0, count)
    by_depth = np.exp(generator.uniform(-3, 1) * depth)
    by_bytes = np.array(layer_bytes, np.float64) / max(layer_bytes)
    mix = generator.uniform()
    shares = (1 - mix) * by_depth + mix * by_bytes + 1e-3
    shares *= np.exp(generator.normal(0.0, 0.4, count))
    seconds = compute_seconds * shares / shares.sum()
    forward = 1 / (1 + generator.uniform(1.5, 2.5) * np.exp(generator.normal(0.0, 0.1, count)))
    return tuple(
        LayerCost(f"layer{number}", _tensors(generator, number, size), float(time * part), float(time * (1 - part)))
        for number, (size, time, part) in enumerate(zip(layer_bytes, seconds, forward, strict=True))
    )


def _layer_bytes(generator: np.random.Generator) -> list[int]:
    """Draw the bytes of each layer: growing with the depth, alike, anyhow, or with one or two giants among them."""
    count = round(_log_uniform(generator, *LAYERS))
    depth = np.linspace(0.0, 1.0, count)
    kind = generator.integers(4)
    if kind == 0:
        weights = np.exp(generator.uniform(1, 5) * depth)
    elif kind == 1:
        weights = np.ones(count)
    else:
        weights = np.exp(generator.normal(0.0, 1.2, count))
    if kind == 3:
        giants = generator.choice(count, size=min(count, int(generator.integers(1, 3))), replace=False)
        weights[giants] += weights.sum() * np.exp(generator.uniform(-1, 2, len(giants)))
    weights *= np.exp(generator.normal(0.0, 0.2, count))
    total = _log_uniform(generator, *MODEL_BYTES)
    return [max(4, int(total * weight / weights.sum() / 4) * 4) for weight in weights]


def _tensors(generator: np.random.Generator, number: int, size_bytes: int) -> tuple[TensorCost, ...]:
    """Cut a layer's bytes into its tensors: often a small one beside the large one, sometimes several alike."""
    name = f"layer{number}"
    if size_bytes > 4096 and generator.uniform() < _BIAS_SHARE:
        bias = 4 * int(generator.integers(8, 256))
        return (TensorCost(f"{name}.weight", size_bytes - bias), TensorCost(f"{name}.bias", bias))
    if size_bytes > 65536 and generator.uniform() < _BIAS_SHARE:
        part = size_bytes // 16 * 4
        rest = size_bytes - 3 * part
        return tuple(TensorCost(f"{name}.{k}", part if k else rest) for k in range(4))
    return (TensorCost(f"{name}.weight", size_bytes),)


def _log_uniform(generator: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(generator.uniform(np.log(low), np.log(high))))
