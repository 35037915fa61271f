"""What a policy is told of a case of `bench placement_world`, and what is so; both drawn. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_lab.bench.placement import placement_draws as ranges
from csd_lab.bench.placement.placement_draws import DrawnLayer, between, draw_model, log_between, off

Floats = npt.NDArray[np.float64]
# Steps before those that count: nothing is under way at the beginning.
WARM_UP = 1


@dataclass(frozen=True)
class Told:
    """What a policy is told of a case.

    Attributes:
        layers: of the model.
        forward, backward: (layers,) seconds of each on a drive of full speed, as a table has them; None: only the
            arithmetic of the layers is known.
        compute_seconds: forward and backward pass of the full batch on a drive of full speed.
        batches, slowness: (drives,) records of a step, and how many times a full-speed drive's seconds a record takes.
        host_ratio: how many times as fast as a drive the host is.
        link_rate, own_rate: bytes/s of the host's side and of a drive's, each way.
        latency_seconds: of a message.
        encode_seconds, read_seconds: of a full batch.
        overlapped: whether the exchange overlaps computing.
    """

    layers: tuple[DrawnLayer, ...]
    forward: Floats | None
    backward: Floats | None
    compute_seconds: float
    batches: tuple[int, ...]
    slowness: tuple[float, ...]
    host_ratio: float
    link_rate: float
    own_rate: float
    latency_seconds: float
    encode_seconds: float
    read_seconds: float
    overlapped: bool


@dataclass(frozen=True)
class PlacementTruth:
    """What is so.

    Attributes:
        forward, backward: (drives, layers) seconds of the drive's batch.
        tail_seconds: (layers + 1,) of the host's layers behind each cut, for all records.
        encode_rate: seconds of a drive for each byte that it sends.
        read_seconds: (drives,).
        own_rate: (drives,) bytes/s.
        group: (drives,) the number of the port that each hangs on.
        port_rate, link_rate: bytes/s of each group's port and of the host's side.
        latency_seconds: of a message.
        message_seconds, receive_rate, sum_rate: of the host, for each message, received byte and byte that it touches.
        step_factor: (steps, drives) of a drive's seconds in a step.
        link_factor: (steps,) of all rates.
    """

    forward: Floats
    backward: Floats
    tail_seconds: Floats
    encode_rate: float
    read_seconds: Floats
    own_rate: Floats
    group: npt.NDArray[np.int64]
    port_rate: float
    link_rate: float
    latency_seconds: float
    message_seconds: float
    receive_rate: float
    sum_rate: float
    step_factor: Floats
    link_factor: Floats


def draw_world(rng: np.random.Generator) -> tuple[Told, PlacementTruth]:
    """Return what a policy is told of a drawn case, and what is so."""
    layers, drives = draw_model(rng), int(rng.choice(ranges.DRIVES))
    batch = int(rng.choice(ranges.BATCHES))
    slow = np.arange(drives) % 2 * (rng.random() < ranges.MIXED)
    batches, slowness = np.where(slow, batch // 2, batch), np.where(slow, 2.0, 1.0)
    compute, ratio = log_between(rng, ranges.COMPUTE_SECONDS), log_between(rng, ranges.HOST_RATIO)
    pushed = drives * sum(layer.weight_bytes for layer in layers)
    link_rate = pushed / (compute * log_between(rng, ranges.WIRE_OVER_COMPUTE))
    forward, backward = _true_layers(rng, layers, compute)
    measured = rng.random() < ranges.MEASURED
    told = Told(
        layers=layers,
        forward=forward * off(rng, ranges.TABLE_ERROR, len(layers)) if measured else None,
        backward=backward * off(rng, ranges.TABLE_ERROR, len(layers)) if measured else None,
        compute_seconds=compute,
        batches=tuple(batches.tolist()),
        slowness=tuple(slowness.tolist()),
        host_ratio=ratio,
        link_rate=link_rate,
        own_rate=link_rate * log_between(rng, ranges.OWN_LINK),
        latency_seconds=log_between(rng, ranges.LATENCY_SECONDS),
        encode_seconds=compute * between(rng, ranges.ENCODE),
        read_seconds=compute * between(rng, ranges.READ),
        overlapped=bool(rng.random() < ranges.OVERLAPPED),
    )
    return told, _draw_truth(rng, told, forward, backward)


def _true_layers(rng: np.random.Generator, layers: Sequence[DrawnLayer], compute: float) -> tuple[Floats, Floats]:
    """Return (layers,) forward and (layers,) backward seconds of a full batch on a drive; they add up to `compute`."""
    operations = np.array([layer.operations for layer in layers])
    linear = np.array([layer.linear for layer in layers])
    forward, backward = (operations * off(rng, ranges.ARITHMETIC_ERROR, len(layers)) for _ in range(2))
    forward = np.where(linear, operations * log_between(rng, ranges.LINEAR_FORWARD), forward)
    backward = np.where(linear, operations * log_between(rng, ranges.LINEAR_BACKWARD), backward)
    return compute / 3 * forward / forward.sum(), compute * 2 / 3 * backward / backward.sum()


def _draw_truth(rng: np.random.Generator, told: Told, forward: Floats, backward: Floats) -> PlacementTruth:
    drives, layers, steps = len(told.batches), len(told.layers), ranges.STEPS + WARM_UP + 1
    batches = np.array(told.batches)
    scale = (np.array(told.slowness) * batches / batches.max() * off(rng, ranges.DEVICE, drives))[:, None]
    linear = np.array([layer.linear for layer in told.layers])
    host = (forward + backward) * batches.sum() / batches.max() / (told.host_ratio * off(rng, ranges.HOST_SPEED))
    host = host * off(rng, ranges.HOST_LAYER, layers) * np.where(linear, log_between(rng, ranges.HOST_LINEAR), 1.0)
    whole = sum(layer.weight_bytes for layer in told.layers)
    link_rate = told.link_rate * between(rng, ranges.EFFICIENCY) / (1 + between(rng, ranges.CROWDING) * (drives - 1))
    grouped = rng.random() < ranges.GROUPED
    port_rate, group_size = between(rng, ranges.GROUP_PORT), int(rng.integers(*ranges.GROUP_SIZE, endpoint=True))
    return PlacementTruth(
        forward=forward * scale,
        backward=backward * scale,
        tail_seconds=np.append(np.cumsum(host[::-1])[::-1], 0.0),
        encode_rate=told.encode_seconds / whole * float(off(rng, ranges.ENCODE_ERROR)),
        read_seconds=told.read_seconds * batches / batches.max(),
        own_rate=told.own_rate * off(rng, ranges.DEVICE, drives),
        group=np.arange(drives) // (group_size if grouped else drives),
        port_rate=link_rate * (port_rate if grouped else 1.0),
        link_rate=link_rate,
        latency_seconds=told.latency_seconds * float(off(rng, ranges.LATENCY)),
        message_seconds=log_between(rng, ranges.MESSAGE_SECONDS),
        receive_rate=log_between(rng, ranges.RECEIVE_RATE),
        sum_rate=log_between(rng, ranges.SUM_RATE),
        step_factor=_step_factors(rng, steps, drives),
        link_factor=_wander(rng, steps),
    )


def _step_factors(rng: np.random.Generator, steps: int, drives: int) -> Floats:
    factors = off(rng, between(rng, ranges.STEP_NOISE), (steps, drives))
    share = between(rng, ranges.STRAGGLING)
    for drive in range(drives):
        for step in np.flatnonzero(rng.random(steps) < share).tolist():
            until = step + int(rng.geometric(1 / ranges.STRAGGLING_STEPS))
            factors[step:until, drive] *= between(rng, ranges.STRAGGLER)
    return np.asarray(factors)


def _wander(rng: np.random.Generator, steps: int) -> Floats:
    deviation, memory = between(rng, ranges.LINK_NOISE), ranges.LINK_MEMORY
    level, found = float(rng.normal(0.0, deviation)), []
    for _ in range(steps):
        found.append(level)
        level = memory * level + math.sqrt(1 - memory**2) * float(rng.normal(0.0, deviation))
    return np.asarray(np.exp(-np.abs(np.array(found))))
