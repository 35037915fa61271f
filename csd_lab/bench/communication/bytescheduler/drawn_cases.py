"""Cases of `bench bytescheduler_world`: what is drawn, and from which ranges.

The ranges were committed before anything was run in them. Everything in them is assumed; they are wide on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Log-uniform, unless said otherwise.
MODEL_BYTES = (2e6, 100e6)
# Of the host's side, each way, shared by all drives.
SHARED_BYTES_PER_SECOND = (3e6, 500e6)
# Of a drive's own side over the shared side.
OWN_OVER_SHARED = (0.4, 3.0)
# All drives' bytes of one direction over the shared side, over what an undisturbed drive computes in a step.
WIRE_OVER_COMPUTE = (0.25, 8.0)
LATENCY_SECONDS = (0.05e-3, 2e-3)
# Of a slice beside its bytes: at the drive, and so much of that (uniform) at the host, which has one processor for all.
SLICE_SECONDS = (0.04e-3, 4e-3)
HOST_SHARE = (0.02, 0.25)
# What has left the queue and waits for a drive's own side of the link: another slice is made ready below that.
BUFFER_BYTES = (128 << 10, 4 << 20)
# Uniform, whole numbers, both ends included.
DRIVES = (1, 6)
LAYERS = (4, 24)
# Uniform: how much later layers have more bytes than early ones, and how much less they compute, as natural logarithms
# from the first layer to the last; and one standard deviation of each layer's own.
BYTES_GROW, COMPUTE_FALLS, LAYER_SIGMA = (-1.0, 5.0), (-1.0, 3.0), 0.7
# Of the forward pass in a step's computing: uniform.
FORWARD_SHARE = (0.28, 0.40)
# One drive in so many cases computes so much longer than the others (uniform).
SLOW_CASES, SLOW_FACTOR = 1 / 3, (1.2, 3.0)
# Of a measured step (uniform): one standard deviation, as a logarithm, and its correlation with the step before.
NOISE_SIGMA, NOISE_CORRELATION = (0.005, 0.03), (0.0, 0.8)
# Other traffic begins in so many of the steps, lasts so many steps and makes them so much longer (uniform).
BURST_SHARE, BURST_STEPS, BURST_FACTOR = 0.005, (3, 20), (1.1, 2.0)


@dataclass(frozen=True)
class WorldLayer:
    """A layer, which is one tensor.

    Attributes:
        size_bytes: of its gradient, and of its parameters.
        forward_seconds: on a drive that nothing slows down.
        backward_seconds: the same.
    """

    size_bytes: int
    forward_seconds: float
    backward_seconds: float


@dataclass(frozen=True)
class SliceCase:
    """A model on drives behind a shared link, each figure as it really is.

    Attributes:
        seed: that it was drawn with.
        layers: in the order of the forward pass.
        slowdowns: (drives,) how much longer each computes.
        shared_bytes_per_second: of the host's side, each way.
        own_bytes_per_second: of each drive's side, each way.
        latency_seconds: of whatever is sent, one way.
        drive_slice_seconds: of a drive's processor, for each slice that it sends or reads.
        host_slice_seconds: of the host's processor, for each slice of any drive.
        buffer_bytes: that may wait for a drive's own side before another slice is made ready.
        noise_sigma: of the logarithm of a measured step.
        noise_correlation: of one step's with the next one's.
    """

    seed: int
    layers: tuple[WorldLayer, ...]
    slowdowns: tuple[float, ...]
    shared_bytes_per_second: float
    own_bytes_per_second: float
    latency_seconds: float
    drive_slice_seconds: float
    host_slice_seconds: float
    buffer_bytes: int
    noise_sigma: float
    noise_correlation: float

    @property
    def model_bytes(self) -> int:
        """What a drive sends in a step, and what it gets."""
        return sum(layer.size_bytes for layer in self.layers)

    def own_of(self, drive: int) -> float:
        """Return the bytes per second of a drive's side; all are alike."""
        return self.own_bytes_per_second

    def slice_seconds_of(self, drive: int) -> float:
        """Return what a slice costs a drive's processor; all are alike."""
        return self.drive_slice_seconds

    @property
    def compute_seconds(self) -> float:
        """What the slowest drive computes in a step."""
        return max(self.slowdowns) * sum(each.forward_seconds + each.backward_seconds for each in self.layers)

    @property
    def wire_seconds(self) -> float:
        """All drives' bytes of one direction over the shared side."""
        return len(self.slowdowns) * self.model_bytes / self.shared_bytes_per_second


def log_uniform(generator: np.random.Generator, bounds: tuple[float, float]) -> float:
    """Return a number between two bounds, whose logarithm is drawn uniformly."""
    return float(np.exp(generator.uniform(*np.log(bounds))))


def draw_layers(
    generator: np.random.Generator, count: int, model_bytes: float, compute_seconds: float
) -> tuple[WorldLayer, ...]:
    """Return so many layers of a model of so many bytes, which a drive computes in so many seconds."""
    place = np.linspace(0.0, 1.0, count)
    grow, fall = generator.uniform(*BYTES_GROW), generator.uniform(*COMPUTE_FALLS)
    sizes = np.exp(grow * place + LAYER_SIGMA * generator.standard_normal(count))
    seconds = np.exp(-fall * place + LAYER_SIGMA * generator.standard_normal(count))
    sizes, seconds = sizes / sizes.sum() * model_bytes, seconds / seconds.sum() * compute_seconds
    forward = generator.uniform(*FORWARD_SHARE)
    return tuple(
        WorldLayer(4 * max(16, round(size / 4)), float(forward * took), float((1 - forward) * took))
        for size, took in zip(sizes, seconds, strict=True)
    )


def draw_case(seed: int) -> SliceCase:
    """Return the case of a seed."""
    generator = np.random.default_rng(seed)
    drives, count = (int(generator.integers(*bounds, endpoint=True)) for bounds in (DRIVES, LAYERS))
    model_bytes, shared = log_uniform(generator, MODEL_BYTES), log_uniform(generator, SHARED_BYTES_PER_SECOND)
    compute_seconds = drives * model_bytes / shared / log_uniform(generator, WIRE_OVER_COMPUTE)
    layers = draw_layers(generator, count, model_bytes, compute_seconds)
    slowdowns = [1.0] * drives
    if generator.random() < SLOW_CASES:
        slowdowns[int(generator.integers(drives))] = float(generator.uniform(*SLOW_FACTOR))
    slice_seconds = log_uniform(generator, SLICE_SECONDS)
    return SliceCase(
        seed=seed,
        layers=layers,
        slowdowns=tuple(slowdowns),
        shared_bytes_per_second=shared,
        own_bytes_per_second=shared * log_uniform(generator, OWN_OVER_SHARED),
        latency_seconds=log_uniform(generator, LATENCY_SECONDS),
        drive_slice_seconds=slice_seconds,
        host_slice_seconds=slice_seconds * float(generator.uniform(*HOST_SHARE)),
        buffer_bytes=round(log_uniform(generator, BUFFER_BYTES)),
        noise_sigma=float(generator.uniform(*NOISE_SIGMA)),
        noise_correlation=float(generator.uniform(*NOISE_CORRELATION)),
    )


def draw_noise(case: SliceCase, steps: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return (steps,) factors of measured steps: correlated noise, and bursts of other traffic."""
    generator = np.random.default_rng([case.seed, 1])
    logs, level = np.empty(steps), 0.0
    fresh = np.sqrt(1 - case.noise_correlation**2)
    for step, draw in enumerate(generator.standard_normal(steps)):
        level = case.noise_correlation * level + fresh * draw
        logs[step] = case.noise_sigma * level
    for begin in np.flatnonzero(generator.random(steps) < BURST_SHARE):
        lasts = int(generator.integers(*BURST_STEPS, endpoint=True))
        logs[begin : begin + lasts] += np.log(generator.uniform(*BURST_FACTOR))
    return np.exp(logs)
