"""Prediction of how much faster a step would be with another setting, by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import Costs
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.steady_steps import steady_step_seconds
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.link_conditions import Conditions

Floats = npt.NDArray[np.float64]

# A simulation is kept for conditions that are the same when rounded to so many parts of an octave.
BANDWIDTH_PARTS, FIXED_COST_PARTS = 8, 4
MOST_KEPT = 4096
# So much of what a setting loses under the other conditions of before counts against it: of settings that are as good
# now, that one is better which loses less when conditions come back. Little enough to break ties only.
ELSEWHERE_SHARE = 0.005


class Predictor(Protocol):
    """Knows how settings compare."""

    name: str

    def log_seconds(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> Floats:
        """Return (settings,) log of step seconds, less a constant that all of them share.

        So the difference of two is the log of one's speed-up over the other.
        """


class SimulatedSettings:
    """Simulates every setting (`csd_emu.perfmodel.overlap.steady_steps`), under the conditions as they are believed.

    Conditions are rounded, and what was simulated is kept, so that a link that comes back to what it was costs nothing.
    What a setting loses under the others of these conditions counts a little, too.
    """

    name = "simulation"

    def __init__(self) -> None:
        """Know nothing yet."""
        self._costs: Costs | None = None
        # Of each of the conditions so far, rounded, what each setting takes there.
        self._kept: dict[Conditions, dict[TransferSettings, float]] = {}
        # What was answered since anything was simulated.
        self._answers: dict[tuple[Conditions, tuple[TransferSettings, ...]], Floats] = {}

    def log_seconds(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> Floats:
        """See `Predictor`."""
        if conditions.costs is not self._costs or len(self._kept) > MOST_KEPT:
            self._costs = conditions.costs
            self._kept.clear()
            self._answers.clear()
        # Without the costs, which are the same: to hash them takes long.
        here = replace(conditions, costs=(), link=_rounded(conditions.link))
        kept = self._kept.setdefault(here, {})
        for setting in settings:
            if setting not in kept:
                self._answers.clear()
                costs = [conditions.costs] * here.participants
                kept[setting] = math.log(steady_step_seconds(costs, here.link, setting, block_bytes=here.block_bytes))
        question = here, tuple(settings)
        if question not in self._answers:
            losses = ELSEWHERE_SHARE * self._losses_elsewhere(here, settings)
            self._answers[question] = losses + [kept[setting] for setting in settings]
        return self._answers[question]

    def _losses_elsewhere(self, here: Conditions, settings: Sequence[TransferSettings]) -> Floats:
        """Return (settings,) mean loss under the other conditions; what was no candidate there, as the worst one's."""
        losses = np.zeros(len(settings))
        others = [each for place, each in self._kept.items() if place != here]
        for each in others:
            best, worst = min(each.values()), max(each.values())
            losses += [each.get(setting, worst) - best for setting in settings]
        return losses / max(1, len(others))


def _rounded(link: SharedLink) -> SharedLink:
    """Return nearly the same link, one of few."""
    return SharedLink(
        _round_log(link.bytes_per_second, BANDWIDTH_PARTS),
        _round_log(link.latency_seconds, FIXED_COST_PARTS),
        _round_log(link.slice_seconds, FIXED_COST_PARTS),
    )


def _round_log(figure: float, parts: int) -> float:
    return 2.0 ** (round(math.log2(figure) * parts) / parts) if figure else 0.0
