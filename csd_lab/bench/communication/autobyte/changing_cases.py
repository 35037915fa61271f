"""Cases of `bench autobyte_world`: what is drawn, and from which ranges.

The ranges were committed before anything was run in them. Once, after the first runs, two of them were widened, by how
much the shared side and what slices cost change: in one of the 12 cases of development alone the oracle was 5 % faster
than the setting found beforehand. Everything in them is assumed; they are wide on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from csd_lab.bench.communication.bytescheduler.drawn_cases import WorldLayer, draw_layers, log_uniform

Floats = npt.NDArray[np.float64]

STEPS = 600
# Log-uniform, unless said otherwise.
MODEL_BYTES = (2e6, 100e6)
# Of the host's side, each way, shared by all drives.
SHARED_BYTES_PER_SECOND = (3e6, 500e6)
# Of each drive's own side over the shared side; drives are unlike.
OWN_OVER_SHARED = (0.4, 3.0)
# All drives' bytes of one direction over the shared side, over what an undisturbed drive computes in a step.
WIRE_OVER_COMPUTE = (0.25, 8.0)
LATENCY_SECONDS = (0.05e-3, 2e-3)
# Of a slice beside its bytes: at the drives; each drive's over that; and so much of it (uniform) at the host.
SLICE_SECONDS, OWN_SLICE_FACTOR, HOST_SHARE = (0.04e-3, 4e-3), (0.7, 1.4), (0.02, 0.25)
BUFFER_BYTES = (128 << 10, 4 << 20)
# Uniform, whole numbers, both ends included.
DRIVES = (1, 5)
LAYERS = (4, 24)  # each as for `bench bytescheduler_world`
# How much longer than the fastest one each drive computes (uniform).
COMPUTE_FACTOR = (1.0, 1.5)
# Steps from one change to the next (uniform).
CHANGE_STEPS = (80, 200)
# By how much a change changes: the shared side either way; what slices cost either way, of all drives; one drive's own
# side, down; one drive's computing, up, with so much of it (uniform, as a power) in what its slices cost. One change in
# so many brings back what was at first.
SHARED_FACTOR, SLICE_FACTOR, OWN_FACTOR = (3.0, 30.0), (3.0, 30.0), (2.0, 8.0)
SLOWER_FACTOR, SLOWER_SLICES, BACK_SHARE = (1.5, 4.0), (0.0, 1.0), 0.2
# Storage traffic begins after so many steps (exponential), lasts so many (log-uniform), and takes so much of the shared
# side (uniform). Of the bursts of one state all take the same.
BURST_GAP_STEPS, BURST_STEPS, BURST_SHARE = 200.0, (5, 40), (0.3, 0.8)
# Of a step (uniform): one standard deviation, as a logarithm, and its correlation with the step before.
NOISE_SIGMA, NOISE_CORRELATION = (0.005, 0.03), (0.0, 0.8)
# Of what is seen of a slice: what its end is late by (exponential, its mean), and one in so many that is held up, by so
# many seconds (uniform). And of a layer's seconds, one standard deviation (uniform, as a logarithm).
LATE_SECONDS, HELD_SHARE, HELD_SECONDS, LAYER_NOISE = (0.01e-3, 0.5e-3), 0.005, (2e-3, 50e-3), (0.005, 0.05)


@dataclass(frozen=True)
class DrivesState:
    """A model on unlike drives behind a shared link, each figure as it really is for a while.

    Attributes:
        layers: in the order of the forward pass.
        slowdowns: (drives,) how much longer each computes.
        shared_bytes_per_second: of the host's side, each way.
        own_bytes_per_second: (drives,) of each drive's side, each way.
        latency_seconds: of whatever is sent, one way.
        drive_slice_seconds: (drives,) of each drive's processor, for each slice that it sends or reads.
        host_slice_seconds: of the host's processor, for each slice of any drive.
        buffer_bytes: that may wait for a drive's own side before another slice is made ready.
    """

    layers: tuple[WorldLayer, ...]
    slowdowns: tuple[float, ...]
    shared_bytes_per_second: float
    own_bytes_per_second: tuple[float, ...]
    latency_seconds: float
    drive_slice_seconds: tuple[float, ...]
    host_slice_seconds: float
    buffer_bytes: int

    @property
    def model_bytes(self) -> int:
        """What a drive sends in a step, and what it gets."""
        return sum(layer.size_bytes for layer in self.layers)

    def own_of(self, drive: int) -> float:
        """Return the bytes per second of a drive's side."""
        return self.own_bytes_per_second[drive]

    def slice_seconds_of(self, drive: int) -> float:
        """Return what a slice costs a drive's processor."""
        return self.drive_slice_seconds[drive]


@dataclass(frozen=True)
class ChangingCase:
    """States one after the other.

    Attributes:
        seed: that it was drawn with.
        states: all that there are, in the order in which they come first; the first one is known beforehand.
        at: (steps,) which of them each step has.
        step_noise: (steps,) factors of each step's seconds.
        late_seconds: of the ends of slices, as they are seen, a mean.
        layer_noise: of a layer's seconds, as they are seen, one standard deviation of the logarithm.
    """

    seed: int
    states: tuple[DrivesState, ...]
    at: tuple[int, ...]
    step_noise: Floats
    late_seconds: float
    layer_noise: float


def draw_case(seed: int) -> ChangingCase:
    """Return the case of a seed."""
    generator = np.random.default_rng(seed)
    first = _draw_state(generator)
    noise = _draw_noise(generator)
    states, at = _draw_changes(generator, first)
    # Only states that a step has, in the order in which they come.
    numbers = {state: number for number, state in enumerate(dict.fromkeys(at))}
    return ChangingCase(
        seed=seed,
        states=tuple(states[each] for each in numbers),
        at=tuple(numbers[each] for each in at),
        step_noise=noise,
        late_seconds=log_uniform(generator, LATE_SECONDS),
        layer_noise=float(generator.uniform(*LAYER_NOISE)),
    )


def _draw_state(generator: np.random.Generator) -> DrivesState:
    drives, count = (int(generator.integers(*bounds, endpoint=True)) for bounds in (DRIVES, LAYERS))
    model_bytes, shared = (log_uniform(generator, each) for each in (MODEL_BYTES, SHARED_BYTES_PER_SECOND))
    compute_seconds = drives * model_bytes / shared / log_uniform(generator, WIRE_OVER_COMPUTE)
    layers = draw_layers(generator, count, model_bytes, compute_seconds)
    slice_seconds = log_uniform(generator, SLICE_SECONDS)
    return DrivesState(
        layers=layers,
        slowdowns=tuple(float(generator.uniform(*COMPUTE_FACTOR)) for _ in range(drives)),
        shared_bytes_per_second=shared,
        own_bytes_per_second=tuple(shared * log_uniform(generator, OWN_OVER_SHARED) for _ in range(drives)),
        latency_seconds=log_uniform(generator, LATENCY_SECONDS),
        drive_slice_seconds=tuple(slice_seconds * log_uniform(generator, OWN_SLICE_FACTOR) for _ in range(drives)),
        host_slice_seconds=slice_seconds * float(generator.uniform(*HOST_SHARE)),
        buffer_bytes=round(log_uniform(generator, BUFFER_BYTES)),
    )


def _draw_changes(generator: np.random.Generator, first: DrivesState) -> tuple[list[DrivesState], list[int]]:
    """Return states, and (steps,) which of them each step has; a burst's state is another one."""
    states, at = [first], [0] * STEPS
    changes = [lambda state: _change_shared(generator, state), lambda state: _change_slices(generator, state)]
    changes += [lambda state: _narrow_drive(generator, state), lambda state: _slow_drive(generator, state)]
    begin = int(generator.uniform(*CHANGE_STEPS))
    while begin < STEPS:
        change: Callable[[DrivesState], DrivesState] = changes[int(generator.integers(len(changes)))]
        # Counted from the first state, so that figures stay near the ranges that they were drawn from.
        if generator.random() < BACK_SHARE and at[begin] != 0:
            number = 0
        else:
            states.append(change(first if generator.random() < 0.5 else states[at[begin]]))
            number = len(states) - 1
        at[begin:] = [number] * (STEPS - begin)
        begin += int(generator.uniform(*CHANGE_STEPS))
    return states, _add_bursts(generator, states, at)


def _add_bursts(generator: np.random.Generator, states: list[DrivesState], at: list[int]) -> list[int]:
    with_bursts, disturbed = list(at), dict[int, int]()
    begin = float(generator.exponential(BURST_GAP_STEPS))
    while begin < STEPS:
        end = min(STEPS, int(begin) + round(log_uniform(generator, BURST_STEPS)))
        for step in range(int(begin), end):
            if at[step] not in disturbed:
                state = states[at[step]]
                left = state.shared_bytes_per_second * (1 - float(generator.uniform(*BURST_SHARE)))
                states.append(replace(state, shared_bytes_per_second=left))
                disturbed[at[step]] = len(states) - 1
            with_bursts[step] = disturbed[at[step]]
        begin = end + float(generator.exponential(BURST_GAP_STEPS))
    return with_bursts


def _change_shared(generator: np.random.Generator, state: DrivesState) -> DrivesState:
    factor = log_uniform(generator, SHARED_FACTOR) ** int(generator.choice([-1, 1]))
    return replace(state, shared_bytes_per_second=state.shared_bytes_per_second * factor)


def _change_slices(generator: np.random.Generator, state: DrivesState) -> DrivesState:
    factor = log_uniform(generator, SLICE_FACTOR) ** int(generator.choice([-1, 1]))
    return replace(
        state,
        drive_slice_seconds=tuple(each * factor for each in state.drive_slice_seconds),
        host_slice_seconds=state.host_slice_seconds * factor,
    )


def _narrow_drive(generator: np.random.Generator, state: DrivesState) -> DrivesState:
    drive = int(generator.integers(len(state.slowdowns)))
    own = list(state.own_bytes_per_second)
    own[drive] /= log_uniform(generator, OWN_FACTOR)
    return replace(state, own_bytes_per_second=tuple(own))


def _slow_drive(generator: np.random.Generator, state: DrivesState) -> DrivesState:
    drive, factor = int(generator.integers(len(state.slowdowns))), log_uniform(generator, SLOWER_FACTOR)
    slowdowns, slices = list(state.slowdowns), list(state.drive_slice_seconds)
    slowdowns[drive] *= factor
    slices[drive] *= factor ** generator.uniform(*SLOWER_SLICES)
    return replace(state, slowdowns=tuple(slowdowns), drive_slice_seconds=tuple(slices))


def _draw_noise(generator: np.random.Generator) -> Floats:
    """Return (steps,) factors of steps: correlated noise."""
    sigma, correlation = generator.uniform(*NOISE_SIGMA), generator.uniform(*NOISE_CORRELATION)
    logs, level = np.empty(STEPS), 0.0
    fresh = np.sqrt(1 - correlation**2)
    for step, draw in enumerate(generator.standard_normal(STEPS)):
        level = correlation * level + fresh * draw
        logs[step] = sigma * level
    return np.exp(logs)
