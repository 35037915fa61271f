"""What an array draws while it trains, for the objective `energy`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.power import PowerFigures
from csd_emu.profiles import Profile
from host.core.tuning.batch_tuner import Floats


@dataclass(frozen=True)
class StepWatts:
    """Watts of an array.

    Attributes:
        waiting: of all that is switched on, for as long as a step takes.
        computing: (devices,) so many more of each while it computes.
    """

    waiting: float
    computing: Floats

    @staticmethod
    def of(nodes: Sequence[Profile], on: Sequence[Profile]) -> StepWatts:
        """Return those of profiles: of who trains, with all cores busy, and of all that is on, chassis included."""
        power = PowerFigures.of(nodes)
        chassis = sum(each.chassis_watts.value for each in on if each.chassis_watts is not None)
        waiting = chassis + float(np.sum(PowerFigures.of(on).idle_watts))
        return StepWatts(waiting, power.cores * power.core_watts + power.dram_watts)
