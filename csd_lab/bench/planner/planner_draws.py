"""Random draws of the hidden world of `bench planner` (`csd_lab.bench.planner.planner_world`), and their widths. Pure.

Chosen once, before there was a planner to try, from what is known of such machines, not from what a planner can learn:

* compute: each kind is off its table by a factor (a quarter, as a log), its fixed part by another one, its curve
  swings, and beyond some batch (caches, memory bandwidth) records take longer; devices of a kind differ by 1-2 %;
* steps: each device's seconds vary by 1-3 %, and now and then a step takes up to twice as long;
* the link carries less than it says, less still the more drives there are; latencies and each drive's own side are
  other than the profile's; its rate varies from step to step;
* the host: sum and optimiser are faster or slower than assumed; a host that trains slows the link and its own sum down,
  and the drives that it serves slow its training down;
* watts: idle, per core and of memory are off the profile's; who waits for the link polls it; the meter is noisy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from host.policies.selection.cluster import Cluster, Counts, DeviceKind, Floats

# Standard deviations, of logarithms, of what is off.
_KIND, _FIXED, _DEVICE, _WATTS, _LATENCY, _OWN_LINK, _REDUCE = 0.25, 0.5, 0.015, 0.2, 0.5, 0.1, 0.3
# Standard deviation of how far a kind's seconds of a record swing about their mean, and over how many doublings of the
# batch: kernels change with it. Bounded, for no processor gets faster without end.
_SWING, _OCTAVES = 0.015, (3.0, 6.0)
# Ranges, uniform, of what follows. Of the logarithm of the records of a drive at the knee, of which the host has
# `_HOST_KNEE` times as many; beyond it a record takes longer by a share.
_KNEE, _STEEPER, _HOST_KNEE = (4.0, 64.0), (0.05, 0.5), 16.0
# Standard deviations of logarithms, step by step: of a device's seconds, of the link's rate, of the meter.
_STEP_NOISE, _LINK_NOISE, _METER_NOISE = (0.01, 0.03), (0.01, 0.05), (0.005, 0.02)
# Share of a device's steps that take longer, and by how much of their length.
_SPIKES, _SPIKE = (0.0, 0.005), (0.1, 1.0)
# The link's rate with one drive, and what each further one costs of it.
_EFFICIENCY, _CROWDING = (0.75, 1.0), (0.0, 0.02)
# While the host trains: what the link loses, how much longer the sum takes; how much longer it trains per drive.
_TRAINING_LINK, _TRAINING_SUM, _SERVING = (0.0, 0.25), (0.0, 0.3), (0.0, 0.015)
# Cores that poll while a drive waits for the link, and on the host while anything crosses it.
_POLLING, _HOST_POLLING = (0.0, 0.5), (0.0, 2.0)


@dataclass(frozen=True)
class TrueSeconds:
    """What a batch of b takes, in seconds.

    ``fixed + record (b (1 + swing sin(2 pi (log2 b / octaves + phase))) + steeper max(0, b - knee))``
    """

    fixed_seconds: float
    record_seconds: float
    swing: float
    octaves: float
    phase: float
    knee: float
    steeper: float

    def seconds(self, batches: Floats | Counts) -> Floats:
        """Return the seconds of batches of at least 1."""
        swung = self.swing * np.sin(2 * np.pi * (np.log2(batches) / self.octaves + self.phase))
        beyond = self.steeper * np.maximum(0.0, batches - self.knee)
        return np.asarray(self.fixed_seconds + self.record_seconds * (batches * (1 + swung) + beyond))


@dataclass(frozen=True)
class Draws:
    """What was drawn for one world; figures of nodes are (nodes,) in the cluster's order, of kinds (kinds,).

    Attributes:
        curves: of each kind.
        device: factor of each node's seconds.
        step_noise: of each node, standard deviation of the logarithm of a step's seconds.
        spike_share: of a node's steps, that take longer.
        link_noise, meter_noise: standard deviations of logarithms, by step.
        efficiency, crowding: the link's rate with n drives is the nominal one x efficiency / (1 + crowding (n - 1)).
        latency: factor of all latencies.
        own_link: factor of each kind's own side of the link.
        reduce: factor of the host's sum and optimiser.
        training_link: share of its rate that the link loses while the host trains.
        training_sum: share that the sum takes longer while the host trains.
        serving: share that the host's computing takes longer, per drive that takes part.
        idle, core, dram: factors of each kind's watts.
        host_idle, host_core: of the server, chassis and memory included.
        polling, host_polling: cores.
    """

    curves: tuple[TrueSeconds, ...]
    device: Floats
    step_noise: Floats
    spike_share: float
    link_noise: float
    meter_noise: float
    efficiency: float
    crowding: float
    latency: float
    own_link: Floats
    reduce: float
    training_link: float
    training_sum: float
    serving: float
    idle: Floats
    core: Floats
    dram: Floats
    host_idle: float
    host_core: float
    polling: float
    host_polling: float


@dataclass(frozen=True)
class StepNoise:
    """What varies by step: (steps, nodes) factors of seconds; (steps,) factors of the link's time and of the meter."""

    device: Floats
    link: Floats
    meter: Floats


def draw(cluster: Cluster, generator: np.random.Generator, noise: float | None = None) -> Draws:
    """Return a world for a cluster.

    Args:
        cluster: with a speed table for every kind.
        generator: of everything.
        noise: standard deviation of the logarithm of every node's step, to compare; with 0 no step differs from
            another. None: drawn. Everything else is the same whatever it is.
    """
    kinds, nodes = len(cluster.kinds), sum(cluster.counts)

    def off(deviation: float, size: int) -> Floats:
        return np.exp(generator.normal(0.0, deviation, size))

    def within(bounds: tuple[float, float]) -> float:
        return float(generator.uniform(*bounds))

    drawn = Draws(
        curves=tuple(_draw_curve(kind, generator) for kind in cluster.kinds),
        device=off(_DEVICE, nodes),
        step_noise=generator.uniform(*_STEP_NOISE, nodes),
        spike_share=within(_SPIKES),
        link_noise=within(_LINK_NOISE),
        meter_noise=within(_METER_NOISE),
        efficiency=within(_EFFICIENCY),
        crowding=within(_CROWDING),
        latency=float(off(_LATENCY, 1)[0]),
        own_link=off(_OWN_LINK, kinds),
        reduce=float(off(_REDUCE, 1)[0]),
        training_link=within(_TRAINING_LINK),
        training_sum=within(_TRAINING_SUM),
        serving=within(_SERVING),
        idle=off(_WATTS, kinds),
        core=off(_WATTS, kinds),
        dram=off(_WATTS, kinds),
        host_idle=float(off(_WATTS, 1)[0]),
        host_core=float(off(_WATTS, 1)[0]),
        polling=within(_POLLING),
        host_polling=within(_HOST_POLLING),
    )
    return drawn if noise is None else _with_noise(drawn, noise)


def draw_noise(draws: Draws, steps: int, generator: np.random.Generator) -> StepNoise:
    """Return what varies in so many steps, of all nodes, whoever takes part; factors of 1 in the mean, spikes aside."""
    device = _level(draws.step_noise, (steps, len(draws.step_noise)), generator)
    spikes = generator.random(device.shape) < draws.spike_share
    device = device * np.where(spikes, 1 + generator.uniform(*_SPIKE, device.shape), 1.0)
    link, meter = (_level(each, (steps,), generator) for each in (draws.link_noise, draws.meter_noise))
    return StepNoise(device, link, meter)


def no_noise(nodes: int) -> StepNoise:
    """Return one step in which nothing varies."""
    return StepNoise(np.ones((1, nodes)), np.ones(1), np.ones(1))


def _draw_curve(kind: DeviceKind, generator: np.random.Generator) -> TrueSeconds:
    if kind.speed is None:
        raise ValueError(f"{kind.name}: a world is drawn around a table, and there is none")
    seconds = kind.speed.step_seconds
    record = float(seconds[-1] - seconds[0]) / (len(seconds) - 1)
    whole, fixed, swing = generator.normal(0.0, (_KIND, _FIXED, _SWING)).tolist()
    knee = float(np.exp(generator.uniform(*np.log(_KNEE)))) * (_HOST_KNEE if kind.local else 1.0)
    octaves, phase, steeper = (float(generator.uniform(*bounds)) for bounds in (_OCTAVES, (0.0, 1.0), _STEEPER))
    own = math.exp(whole)
    first = own * math.exp(fixed) * max(0.0, float(seconds[0]) - record)
    return TrueSeconds(first, own * record, swing, octaves, phase, knee, steeper)


def _with_noise(draws: Draws, noise: float) -> Draws:
    still = noise == 0
    return replace(
        draws,
        step_noise=np.full(len(draws.step_noise), noise),
        spike_share=0.0 if still else draws.spike_share,
        link_noise=0.0 if still else draws.link_noise,
        meter_noise=0.0 if still else draws.meter_noise,
    )


def _level(deviation: Floats | float, shape: tuple[int, ...], generator: np.random.Generator) -> Floats:
    """Return lognormal factors with a mean of 1."""
    spread = np.asarray(deviation)
    return np.asarray(np.exp(generator.normal(0.0, 1.0, shape) * spread - spread**2 / 2))
