"""Transfer tuners on a bandwidth trace: they see noisy measurements; each step is simulated with their setting. Pure.

A step takes what the simulation says of steps that follow each other under the conditions of that step: what a change
leaves over from the step before is not counted. What a step told decides how the next one is sent, as in runs. Each
setting is simulated once at every level of bandwidth, so that thousands of steps cost one look each. Traces are the
bandwidth left in each step, drawn from a generator of the caller's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import Costs, DriveTransfers, scale_compute
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES
from csd_lab.simulate.slowdown_traces import arrivals
from csd_lab.simulate.turn_simulation import step_seconds
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.transfer_tuner import Change, StepSeen, TransferTuner

# Bandwidths are whole steps of an eighth of an octave: few enough for each to be simulated once.
STEPS_PER_OCTAVE = 8
Levels = npt.NDArray[np.int64]
# Sizes of the slices that a tuner is told of.
_SEEN_BYTES = (4 << 10, 64 << 10, 1 << 20)


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


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ObservationNoise:
    """Standard deviations of the logs of what a tuner is told, over what is true."""

    bandwidth: float = 0.05
    rtt: float = 0.1
    slice_seconds: float = 0.1
    step: float = 0.02
    load: float = 0.01


SILENT = ObservationNoise(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Setup:
    """A model on drives and a link whose bandwidth has levels (see `csd_lab.generate.autobyte.tuner_scenario`).

    Attributes:
        costs: of each drive; all are alike.
        drives: how many.
        link: at level 0.
        block_bytes: the host steps so many at once.
    """

    costs: Costs
    drives: int
    link: SharedLink
    block_bytes: int = BLOCK_BYTES

    def step_seconds(self, level: float, setting: TransferSettings) -> float:
        """Return what a step takes at a level."""
        costs = [self.costs] * self.drives
        return step_seconds(costs, self.link_at(level), setting, block_bytes=self.block_bytes)

    def link_at(self, level: float) -> SharedLink:
        """Return the link at a level."""
        return replace(self.link, bytes_per_second=self.link.bytes_per_second * 2 ** (level / STEPS_PER_OCTAVE))


class Surface:
    """Step seconds of a setup with each of some settings at each level."""

    def __init__(self, setup: Setup, settings: Sequence[TransferSettings], octaves: float) -> None:
        """Simulate every setting at every level.

        Args:
            setup: the model, drives and link.
            settings: what a tuner may choose.
            octaves: levels go up to these.
        """
        self.setup, self.settings = setup, tuple(settings)
        self._index = {setting: number for number, setting in enumerate(self.settings)}
        levels = range(math.ceil(octaves * STEPS_PER_OCTAVE) + 1)
        # (levels, settings)
        self.seconds: Floats = np.array([[setup.step_seconds(level, each) for each in settings] for level in levels])

    def index(self, setting: TransferSettings) -> int:
        """Return the number of a setting."""
        return self._index[setting]

    def oracle_seconds(self, levels: Levels) -> Floats:
        """Return (steps,) of one that knows each step's level and has the best setting at once."""
        best: Floats = self.seconds.min(axis=1)[levels]
        return best

    def best_static(self, levels: Levels) -> int:
        """Return the setting that is best over all these steps, in hindsight."""
        return int(self.seconds[levels].sum(axis=0).argmin())


@dataclass(frozen=True)
class Played:
    """How a tuner did.

    Attributes:
        seconds: (steps,) true ones.
        chosen: (steps,) numbers of the settings.
        changes: all that it announced.
        cpu_seconds: that its decisions took, of the process.
    """

    seconds: Floats
    chosen: Levels
    changes: tuple[Change, ...]
    cpu_seconds: float


def play(
    surface: Surface,
    tuner: TransferTuner,
    levels: Levels,
    generator: np.random.Generator,
    noise: ObservationNoise | None = None,
    cpu_clock: Callable[[], float] = time.process_time,
) -> Played:
    """Have a tuner go through a trace of levels."""
    noise = noise or ObservationNoise()
    steps, setup = len(levels), surface.setup
    bandwidths = setup.link.bytes_per_second / setup.drives * 2 ** (levels / STEPS_PER_OCTAVE)
    drawn = {name: np.exp(sigma * generator.standard_normal(steps)) for name, sigma in vars(noise).items()}
    chosen, changes = np.empty(steps, np.int64), []
    began = cpu_clock()
    for index in range(steps):
        sending = tuner.sending(index + 1)
        chosen[index] = number = surface.index(sending)
        seen = StepSeen(
            step=index + 1,
            step_seconds=float(surface.seconds[levels[index], number] * drawn["step"][index]),
            sending=sending,
            drives=(_see(setup, float(bandwidths[index]), {name: each[index] for name, each in drawn.items()}),)
            * setup.drives,
        )
        if (change := tuner.observe(seen)) is not None:
            changes.append(change)
    cpu_seconds = cpu_clock() - began
    return Played(surface.seconds[levels, chosen], chosen, tuple(changes), cpu_seconds)


def make_slices(
    byte_seconds: float, round_trip_seconds: float, slice_seconds: float, sizes: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Return pulls as `DriveTransfers` has them: of each size one that finds the link idle, and one that waits."""
    rows, now = list[tuple[float, ...]](), 0.0
    for size in sizes:
        took = slice_seconds + size * byte_seconds
        rows.append((0.0, size, now, now + took + round_trip_seconds))
        rows.append((0.0, size, now, now + 2 * took + round_trip_seconds))
        now += 3 * (took + round_trip_seconds)
    return np.array(rows)


def _see(setup: Setup, bandwidth: float, drawn: Mapping[str, float]) -> DriveTransfers:
    """Return what is measured of a drive: a link of so many bytes per second, each figure off by what was drawn."""
    link = setup.link
    slices = make_slices(
        1 / (bandwidth * drawn["bandwidth"]),
        2 * link.latency_seconds * drawn["rtt"],
        link.slice_seconds * drawn["slice_seconds"],
        _SEEN_BYTES,
    )
    return DriveTransfers(scale_compute(setup.costs, drawn["load"]), slices)
