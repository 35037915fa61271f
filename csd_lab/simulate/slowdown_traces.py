"""Synthetic slowdown traces of an array: how slow each device is in each step. The generator is an argument. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firmware_agent.common.errors import ConfigurationError
from host.core.tuning.batch_tuner import Floats

# Of `RandomSlowdowns`: share of the speed that is lost, and by what share each device's seconds vary.
LOST_SHARE, JITTER = (0.2, 0.9), 0.01


@dataclass(frozen=True)
class SlowdownProcess:
    """What traces are drawn from.

    Changes come with exponential gaps, somewhere in the array. One is, with the given chances, a death (`death`), the
    return of a dead device if there is one (`rejoin`), the recovery of a disturbed one if there is one (`recovery`), or
    else a slowdown of any device that lives, to a share of its speed lost that is uniform between `least_loss` and
    `most_loss`. A slowdown or recovery comes at once, or with chance `drift` as a linear change of the speed over
    `drift_steps`. One that comes at once hits its first step somewhere in the middle.

    Blips are not counted as changes: slowdowns of one or two steps, with exponential gaps of their own.

    Attributes:
        steps: of a trace.
        devices: of the array.
        mean_gap_steps: between changes.
        least_loss, most_loss: share of the speed lost; 0.9 is ten times the seconds.
        death, rejoin, recovery, drift: chances.
        drift_steps: least and most.
        blip_gap_steps: mean gap between blips; infinite for none.
        noise: standard deviation of the log of what is measured over what it took.
    """

    steps: int = 2000
    devices: int = 37
    mean_gap_steps: float = 100.0
    least_loss: float = 0.2
    most_loss: float = 0.9
    death: float = 0.05
    rejoin: float = 0.05
    recovery: float = 0.4
    drift: float = 0.2
    drift_steps: tuple[int, int] = (20, 80)
    blip_gap_steps: float = 250.0
    noise: float = 0.01

    def __post_init__(self) -> None:
        """Check the losses.

        Raises:
            ConfigurationError: a device would lose all of its speed, or gain some.
        """
        if not 0 <= self.least_loss <= self.most_loss < 1:
            raise ConfigurationError(
                f"losses of {self.least_loss} to {self.most_loss} are no shares of a speed; give 0 <= least <= most < 1"
            )


@dataclass(frozen=True)
class SlowdownTrace:
    """One trace.

    Attributes:
        slowdowns: (steps, devices) seconds over the table's; NaN for a dead device.
        noise: (steps, devices) measured seconds over those it took.
        changes: how many there were, blips not counted.
    """

    slowdowns: Floats
    noise: Floats
    changes: int


def draw_trace(generator: np.random.Generator, trace_process: SlowdownProcess) -> SlowdownTrace:
    """Draw a trace."""
    speeds = np.ones((trace_process.steps, trace_process.devices))
    changes = 0
    for step in arrivals(generator, trace_process.mean_gap_steps, trace_process.steps):
        changes += _change(generator, trace_process, speeds, step)
    for step in arrivals(generator, trace_process.blip_gap_steps, trace_process.steps):
        device, length = generator.integers(trace_process.devices), generator.integers(1, 3)
        speeds[step : step + length, device] *= 1 - _loss(generator, trace_process)
    noise = np.exp(trace_process.noise * generator.standard_normal(speeds.shape))
    return SlowdownTrace(1 / speeds, noise, changes)


def draw_traces(seed: int, first: int, count: int, trace_process: SlowdownProcess) -> list[SlowdownTrace]:
    """Draw traces number `first` to `first + count`; each depends on the seed and its number alone."""
    return [draw_trace(np.random.default_rng([seed, first + number]), trace_process) for number in range(count)]


def arrivals(generator: np.random.Generator, mean_gap: float, steps: int) -> list[int]:
    """Return the steps below `steps`, rising, at which something happens that comes every `mean_gap` on average."""
    if not np.isfinite(mean_gap):
        return []
    times, now = [], generator.exponential(mean_gap)
    while now < steps:
        times.append(int(now))
        now += generator.exponential(mean_gap)
    return times


def _loss(generator: np.random.Generator, trace_process: SlowdownProcess) -> float:
    return float(generator.uniform(trace_process.least_loss, trace_process.most_loss))


def _change(generator: np.random.Generator, trace_process: SlowdownProcess, speeds: Floats, step: int) -> bool:
    """Change the speeds (NaN for dead) from `step` on; return whether there was anything to change."""
    # What a device will have come to; a drift that is going on ends where it is.
    now = speeds[step]
    alive, slowed = np.flatnonzero(~np.isnan(now)), np.flatnonzero(now < 1)
    dead = np.flatnonzero(np.isnan(now))
    chance = generator.uniform()
    if chance < trace_process.death:
        if len(alive) < 2:
            return False
        speeds[step:, generator.choice(alive)] = np.nan
        return True
    if len(dead) and chance < trace_process.death + trace_process.rejoin:
        # It comes back with any speed; the tuner is not told which.
        comes_slow = generator.uniform() < 0.5
        speeds[step:, generator.choice(dead)] = 1 - _loss(generator, trace_process) if comes_slow else 1.0
        return True
    if len(slowed) and chance < trace_process.death + trace_process.rejoin + trace_process.recovery:
        device, to = int(generator.choice(slowed)), 1.0
    else:
        device, to = int(generator.choice(alive)), 1 - _loss(generator, trace_process)
    _shift(generator, trace_process, speeds[step:, device], to)
    return True


def _shift(generator: np.random.Generator, trace_process: SlowdownProcess, speed: Floats, to: float) -> None:
    start = float(speed[0])
    if generator.uniform() < trace_process.drift:
        steps = int(generator.integers(*trace_process.drift_steps, endpoint=True))
        ramp = np.linspace(start, to, steps + 1)[1 : len(speed) + 1]
        speed[: len(ramp)], speed[len(ramp) :] = ramp, to
        return
    speed[:] = to
    speed[0] = 1 / (1 / start + generator.uniform() * (1 / to - 1 / start))


class RandomSlowdowns:
    """Slowdowns asked for step by step: one begins in each, lasts for an exponential time, and all jitter.

    It is a device's that is drawn at random, and loses 20 to 90 % of its speed.
    """

    def __init__(self, devices: int, mean_steps: float, generator: np.random.Generator) -> None:
        """Draw from `generator`, as steps are asked for; a slowdown lasts for `mean_steps` on average."""
        self._mean_steps, self._generator, self._levels = mean_steps, generator, np.ones(devices)
        self._ends: dict[int, list[int]] = {}

    def __call__(self, step: int) -> Floats:
        """Return the slowdowns of `step`, (devices,)."""
        draw = self._generator
        for device in self._ends.pop(step, ()):
            self._levels[device] = 1.0
        device, lasting = int(draw.integers(len(self._levels))), 1 + int(draw.exponential(self._mean_steps))
        self._levels[device] = 1 / (1 - draw.uniform(*LOST_SHARE))
        self._ends.setdefault(step + lasting, []).append(device)
        return self._levels * (1 + JITTER * draw.uniform(-1, 1, len(self._levels)))
