"""Random draws of the hidden world of `bench placement_world`, and their ranges. Pure.

The ranges were chosen before any policy was tried on them, from what is known of such machines, not from what a policy
can learn or what its timeline has a term for:

* models: a plain pyramid with one to three linear layers behind it, one with a pooled classifier, one without any
  linear layer, equal blocks; 5 to 24 layers, of which some cannot be cut before;
* layers: a table has measured them within 3 %, or there is none and only arithmetic is known: then a convolution is off
  by a factor (0.3, as a log), and a linear layer takes 2 to 18 times what its arithmetic says, forward, and 1.5 to 6
  times backward, as was measured of this project's reference core (docs/placement.md);
* the host: faster or slower than its ratio, each layer has another share there than on a drive, and linear layers gain
  from the records of all drives at once;
* links: less than they say, less still with each further drive; groups of drives share a port that nobody was told of;
  the rate wanders from step to step (an autocorrelated factor);
* what no policy is told: seconds for each message and each received byte at the host, drives of a kind that differ,
  noise of each step, and stragglers that come back after some steps.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

# Steps of which the mean counts.
STEPS = 6
KINDS = ("linear", "pooled", "convolutions", "blocks")
# What is told: ranges of uniform draws, or of their logarithms (log).
DRIVES, BATCHES = (1, 2, 3, 6, 12, 24, 36), (8, 16, 32, 64)
COMPUTE_SECONDS, WIRE_OVER_COMPUTE, HOST_RATIO = (0.2, 40.0), (0.02, 30.0), (1.0, 30.0)  # log
OWN_LINK = (0.15, 5.0)  # log; of the host's side
LATENCY_SECONDS = (2e-5, 1e-3)  # log
ENCODE, READ = (0.005, 0.05), (0.0, 0.05)  # of the seconds of computing
# Shares of the cases: with unlike drives, whose exchange overlaps computing, of which the table has layers.
MIXED, OVERLAPPED, MEASURED = 0.3, 0.5, 0.5
UNCUTTABLE = 0.15  # of the layers
# What is not told. Standard deviations of logarithms.
TABLE_ERROR, ARITHMETIC_ERROR, HOST_SPEED, HOST_LAYER = 0.03, 0.3, 0.15, 0.2
DEVICE, LATENCY, ENCODE_ERROR = 0.03, 0.5, 0.3
LINEAR_FORWARD, LINEAR_BACKWARD, HOST_LINEAR = (2.0, 18.0), (1.5, 6.0), (0.2, 1.0)  # log
EFFICIENCY, CROWDING = (0.75, 1.0), (0.0, 0.02)
GROUPED, GROUP_SIZE, GROUP_PORT = 0.3, (2, 6), (0.4, 1.0)
LINK_NOISE, LINK_MEMORY, STEP_NOISE = (0.02, 0.15), 0.8, (0.01, 0.03)
STRAGGLING, STRAGGLER, STRAGGLING_STEPS = (0.0, 0.02), (1.2, 3.0), 3.0
MESSAGE_SECONDS, RECEIVE_RATE, SUM_RATE = (5e-5, 1e-3), (1e9, 8e9), (2e9, 2e10)  # log; the rates in bytes/s


@dataclass(frozen=True)
class DrawnLayer:
    """A layer of a drawn model.

    Attributes:
        name: of the layer.
        weight_bytes: exchanged in a step, each way; 0 for none.
        operations: of a record's forward pass; the backward pass has twice as many.
        input_bytes: of a record's activations before it; None if the model cannot be cut there.
        linear: whether it is one.
    """

    name: str
    weight_bytes: int
    operations: float
    input_bytes: int | None
    linear: bool = False


def between(rng: np.random.Generator, ends: tuple[float, float]) -> float:
    """Return a uniform draw."""
    return float(rng.uniform(*ends))


def log_between(rng: np.random.Generator, ends: tuple[float, float]) -> float:
    """Return a draw whose logarithm is uniform."""
    return float(np.exp(rng.uniform(*np.log(ends))))


def off(rng: np.random.Generator, deviation: float, size: int | tuple[int, ...] | None = None) -> np.ndarray:
    """Return factors whose logarithms have this standard deviation."""
    return np.exp(rng.normal(0.0, deviation, size))


def draw_model(rng: np.random.Generator) -> tuple[DrawnLayer, ...]:
    """Return the layers of a model of one of `KINDS`, in forward order; the first one is never cut before."""
    kind = KINDS[rng.integers(len(KINDS))]
    if kind == "blocks":
        layers = _blocks(rng)
    else:
        layers, features = _pyramid(rng, pooled=kind != "linear")
        if kind != "convolutions":
            layers += _linear(rng, features, 1 if kind == "pooled" else int(rng.integers(1, 4)))
    kept = [rng.random() >= UNCUTTABLE for _ in layers]
    return tuple(
        DrawnLayer(
            each.name, each.weight_bytes, each.operations, each.input_bytes if place and keep else None, each.linear
        )
        for place, (each, keep) in enumerate(zip(layers, kept, strict=True))
    )


def _pyramid(rng: np.random.Generator, pooled: bool) -> tuple[list[DrawnLayer], int]:
    """Return convolutions of which some halve the map and double the channels, and the features behind the last one."""
    side, channels, inputs = int(rng.choice([32, 64, 128, 224])), int(rng.choice([16, 32, 64])), 3
    layers, count = [], int(rng.integers(5, 19))
    halving = max(2, count // 5)
    for place in range(count):
        size = 4 * inputs * side * side
        if place and place % halving == 0 and side > 7:
            side, channels = side // 2, min(512, 2 * channels)
        operations = 2.0 * 9 * inputs * channels * side * side
        layers.append(DrawnLayer(f"conv{place}", 4 * 9 * inputs * channels, operations, size))
        inputs = channels
    return layers, channels * (1 if pooled else max(1, side // 2) ** 2)


def _linear(rng: np.random.Generator, features: int, count: int) -> list[DrawnLayer]:
    widths = [
        features,
        *(int(rng.choice([256, 1024, 4096])) for _ in range(count - 1)),
        int(rng.choice([10, 100, 1000])),
    ]
    return [
        DrawnLayer(f"linear{place}", 4 * inputs * outputs, 2.0 * inputs * outputs, 4 * inputs, linear=True)
        for place, (inputs, outputs) in enumerate(itertools.pairwise(widths))
    ]


def _blocks(rng: np.random.Generator) -> list[DrawnLayer]:
    """Return equal blocks over a sequence, whose linear layers see many positions and are as quick as convolutions."""
    width, positions, count = int(rng.choice([128, 256, 512])), int(rng.choice([16, 64, 196])), int(rng.integers(4, 13))
    first = DrawnLayer("embed", 4 * 768 * width, 2.0 * 768 * width * positions, 4 * 3 * 224 * 224)
    weights = 12 * width * width
    blocks = [
        DrawnLayer(f"block{place}", 4 * weights, 2.0 * weights * positions, 4 * width * positions)
        for place in range(count)
    ]
    return [first, *blocks, *_linear(rng, width, 1)]
