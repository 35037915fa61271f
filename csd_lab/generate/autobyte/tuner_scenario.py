"""Transfer tuners on a bandwidth trace: they see noisy measurements; each step is simulated with their setting. Pure.

A step takes what the simulation says of steps that follow each other under the conditions of that step: what a change
leaves over from the step before is not counted. What a step told decides how the next one is sent, as in runs. Each
setting is simulated once at every level of bandwidth, so that thousands of steps cost one look each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import Costs
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.steady_steps import steady_step_seconds
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES
from csd_lab.generate.autobyte.bandwidth_trace import STEPS_PER_OCTAVE, Levels
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.transfer_tuner import Change, StepSeen, TransferTuner

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
    """A model on drives and a link whose bandwidth has levels (see `csd_lab.generate.autobyte.bandwidth_trace`).

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
        return steady_step_seconds(costs, self.link_at(level), setting, block_bytes=self.block_bytes)

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
            costs=setup.costs,
            bytes_per_second=(float(bandwidths[index] * drawn["bandwidth"][index]),) * setup.drives,
            rtt_seconds=(float(2 * setup.link.latency_seconds * drawn["rtt"][index]),) * setup.drives,
            slice_seconds=float(setup.link.slice_seconds * drawn["slice_seconds"][index]),
            load=float(drawn["load"][index]),
        )
        if (change := tuner.observe(seen)) is not None:
            changes.append(change)
    cpu_seconds = cpu_clock() - began
    return Played(surface.seconds[levels, chosen], chosen, tuple(changes), cpu_seconds)
