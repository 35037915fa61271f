"""Steps over a simulated link, and how long one takes once they repeat; see `event_simulation`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.event_simulation import Passed, Simulation, Transfer
from csd_emu.perfmodel.overlap.layer_work import Costs
from csd_emu.perfmodel.overlap.simulated_array import SimulatedArray
from csd_emu.perfmodel.overlap.simulated_link import LinkTrace, SharedLink
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES, BlockStepping, SteppedRange
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings

# Steps have settled when they repeat one of the last few; some schedules alternate.
_LONGEST_PERIOD = 4
_SAME_SHARE = 1e-9
_SETTLING_STEPS = 30


@dataclass(frozen=True)
class Simulated:
    """Steps that were simulated.

    Attributes:
        step_seconds: (steps,) float64: from when the last drive began a step's forward pass to when the last drive
            began the next one's. They add up to the whole.
        groups: (drives,) which group each drive is of; the drives of one have equal costs.
        transfers: the slices that have arrived, in the order of arrival; none if they were not recorded.
        passes: of all layers, in the order in which they ended; none if they were not recorded.
        stepped: the blocks that the host has stepped, in the order in which it did; none if they were not recorded.
    """

    step_seconds: npt.NDArray[np.float64]
    groups: tuple[int, ...]
    transfers: tuple[Transfer, ...] = ()
    passes: tuple[Passed, ...] = ()
    stepped: tuple[SteppedRange, ...] = ()


def simulate(
    costs: Sequence[Costs],
    link: SharedLink | LinkTrace,
    sending: TransferSettings | Sequence[TransferSettings],
    steps: int,
    *,
    block_bytes: int = BLOCK_BYTES,
    merge: bool = True,
    record: bool = False,
) -> Simulated:
    """Return so many steps, from drives that begin with all parameters.

    Args:
        costs: see `SimulatedArray`; of the other arguments see `Simulation`.
        link: as it is, or as it changes in time.
        sending: of all steps, or of each.
        steps: at least one.
        block_bytes: the host steps ranges of so many bytes.
        merge: compute drives with equal costs once.
        record: keep every slice and every layer's pass.

    Raises:
        ConfigurationError: there are no steps, or not one `sending` for each; see `SimulatedArray` and `BlockStepping`.
    """
    sendings = [sending] * steps if isinstance(sending, TransferSettings) else list(sending)
    if steps < 1 or len(sendings) != steps:
        raise ConfigurationError(
            f"{len(sendings)} settings for {steps} steps; give at least one step, and one for each"
        )
    run = Simulation(SimulatedArray(costs), link, sendings[0], BlockStepping(block_bytes), merge=merge, record=record)
    seconds = np.array([run.step(following) for following in (*sendings[1:], None)])
    return Simulated(seconds, run.groups, tuple(run.transfers), tuple(run.passes), tuple(run.stepped))


def steady_step_seconds(
    costs: Sequence[Costs],
    link: SharedLink,
    sending: TransferSettings,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> float:
    """Return what a step takes once steps repeat: the mean over their period, or of the later half if there is none.

    Raises:
        ConfigurationError: see `SimulatedArray` and `BlockStepping`.
    """
    return settle(Simulation(SimulatedArray(costs), link, sending, BlockStepping(block_bytes)))


class Stepping(Protocol):
    """Steps one after the other: a `Simulation`, or what says the same (`csd_emu.perfmodel.overlap.steady_steps`)."""

    def step(self) -> float:
        """Go on until all have begun the next step; return the seconds since they had begun this one."""


class Rounding(Protocol):
    """The same from turn to turn, of a model that is cut."""

    def skip_forward(self) -> None:
        """Begin with the end of the first forward passes."""

    def turn(self) -> float:
        """Go on until the host has computed behind the cut once more; return when."""


def settle(run: Stepping) -> float:
    """Run a simulation that has not begun until its steps repeat, and return what `steady_step_seconds` says."""
    run.step()  # it begins with all parameters, and none of those that follow does
    seconds: list[float] = []
    while len(seconds) < _SETTLING_STEPS:
        seconds.append(run.step())
        for period in range(1, _LONGEST_PERIOD + 1):
            last, before = seconds[-period:], seconds[-2 * period : -period]
            if len(before) == period and all(map(_same, last, before)):
                return sum(last) / period
    later = seconds[_SETTLING_STEPS // 2 :]
    return sum(later) / len(later)


def settle_turns(run: Rounding) -> float:
    """Return what `settle` says of a model that is cut, in a third of its time; the simulation has not begun.

    Whatever came before, all is the same when the host begins behind the cut: every parameter and every activation has
    come, so nothing waits or is under way. What is then not yet acknowledged is before its sender sends again. So the
    first step takes what all others do, from turn to turn; no forward pass need come before it. This holds on a link
    that neither changes nor serves in turns.
    """
    run.skip_forward()
    begun = run.turn()
    return run.turn() - begun


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_SAME_SHARE)
