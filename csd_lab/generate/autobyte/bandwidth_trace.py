"""Synthetic bandwidth traces of a link: the bandwidth left in each step. The caller passes the generator. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_lab.simulate.slowdown_traces import arrivals
from firmware_agent.common.errors import ConfigurationError

# Bandwidths are whole steps of an eighth of an octave: few enough for each to be simulated once.
STEPS_PER_OCTAVE = 8
Levels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BandwidthProcess:
    """What traces of bandwidth are drawn from.

    Attributes:
        steps: of a trace.
        mean_gap_steps: between steps in bandwidth, exponential; infinite for none.
        least_factor, most_factor: by which bandwidth rises or falls in one, log-uniform.
        burst_gap_steps: between bursts of storage traffic, exponential; infinite for none.
        burst_steps: least and most that a burst lasts, log-uniform.
        burst_share: least and most of the link that one takes.
        walk: standard deviation of the log of bandwidth from a step to the next, beside the steps.
        octaves: between the least and the most bandwidth; beyond, factors turn round and walks are reflected.
    """

    steps: int = 2000
    mean_gap_steps: float = 200.0
    least_factor: float = 2.0
    most_factor: float = 10.0
    burst_gap_steps: float = 250.0
    burst_steps: tuple[int, int] = (8, 60)
    burst_share: tuple[float, float] = (0.3, 0.8)
    walk: float = 0.01
    octaves: float = 5.0

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ConfigurationError: a factor or a share makes no sense, or the largest factor has no room.
        """
        if not 1 <= self.least_factor <= self.most_factor <= 2**self.octaves:
            raise ConfigurationError(
                f"factors of {self.least_factor} to {self.most_factor}: give 1 <= least <= most <= 2^octaves"
            )
        if not 0 <= self.burst_share[0] <= self.burst_share[1] < 1:
            raise ConfigurationError(f"bursts that take {self.burst_share} of a link; give 0 <= least <= most < 1")


@dataclass(frozen=True)
class BandwidthTrace:
    """One trace.

    Attributes:
        levels: (steps,) bandwidth, in eighths of an octave above the least one.
        changes: (changes,) steps, from 0, at which bandwidth stepped.
    """

    levels: Levels
    changes: Levels


def draw_trace(generator: np.random.Generator, trace_process: BandwidthProcess) -> BandwidthTrace:
    """Draw a trace."""
    top = trace_process.octaves * np.log(2.0)
    logs = np.full(trace_process.steps, generator.uniform(0.0, top))
    changes = arrivals(generator, trace_process.mean_gap_steps, trace_process.steps)
    for step in changes:
        logs[step:] = _jump(generator, trace_process, float(logs[step]), top)
    logs += np.cumsum(trace_process.walk * generator.standard_normal(trace_process.steps))
    logs = top - np.abs(np.abs(logs) % (2 * top) - top)  # reflected at both ends
    for step in arrivals(generator, trace_process.burst_gap_steps, trace_process.steps):
        length = int(np.exp(generator.uniform(*np.log(trace_process.burst_steps))))
        logs[step : step + length] += np.log1p(-generator.uniform(*trace_process.burst_share))
    levels = np.rint(np.maximum(logs, 0.0) / np.log(2.0) * STEPS_PER_OCTAVE).astype(np.int64)
    return BandwidthTrace(levels, np.array(changes, np.int64))


def _jump(generator: np.random.Generator, trace_process: BandwidthProcess, now: float, top: float) -> float:
    """Return the log of bandwidth after a step: up or down, as there is room."""
    size = generator.uniform(np.log(trace_process.least_factor), np.log(trace_process.most_factor))
    ways = [to for to in (now - size, now + size) if 0 <= to <= top]
    if ways:
        return float(ways[generator.integers(len(ways))])
    return 0.0 if now > top - now else top
