"""Prediction of how much faster a step would be with another setting, by the network or untrained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.analytic import predict_steps
from csd_emu.perfmodel.overlap.layer_work import Costs
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.simulated_step import steady_step_seconds
from firmware_agent.common.errors import ConfigurationError
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

        So the difference of two is the log of one's speed-up over the other. Infinity says that a setting is no
        candidate; the first one never gets it.
        """


class AnalyticPredictor:
    """The closed form of `csd_emu.perfmodel.overlap.analytic`: the honest baseline of anything that was trained."""

    name = "analytic"

    def log_seconds(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> Floats:
        """See `Predictor`."""
        costs = [conditions.costs] * conditions.participants
        seconds: Floats = np.log(predict_steps(costs, conditions.link, settings, conditions.block_bytes))
        return seconds


class SimulatedShortlist:
    """Simulates the settings that another predictor finds best, and the first one; the others are no candidates.

    So are the neighbours of the best of these: a predictor that is nearly right is enough.

    Conditions are rounded, and what was simulated is kept, so that a link that comes back to what it was costs nothing.
    What a setting loses under the others of these conditions counts a little, too.
    """

    def __init__(self, proposes: Predictor | None, length: int = 12) -> None:
        """Take who proposes, and how many are simulated beside the first one; None proposes every setting.

        Raises:
            ConfigurationError: the list is to be empty.
        """
        if length < 1:
            raise ConfigurationError(f"a shortlist of {length} settings; give 1 at least")
        self.name = f"{proposes.name} and simulation" if proposes is not None else "simulation"
        self._proposes, self._length = proposes, length
        self._costs: Costs | None = None
        # Of each of the conditions so far, rounded, what each setting takes there; and the answers given there.
        self._kept: dict[Conditions, dict[TransferSettings, float]] = {}
        self._answers: dict[tuple[Conditions, tuple[TransferSettings, ...]], Floats] = {}
        # What these settings lose elsewhere, and how much was simulated when that was worked out.
        self._losses: dict[tuple[Conditions, tuple[TransferSettings, ...]], tuple[int, Floats]] = {}
        self._simulated = 0

    def log_seconds(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> Floats:
        """See `Predictor`."""
        if conditions.costs is not self._costs or len(self._answers) > MOST_KEPT:
            self._costs = conditions.costs
            self._kept.clear()
            self._answers.clear()
            self._losses.clear()
        # Without the costs, which are the same: to hash them takes long.
        here = replace(conditions, costs=(), link=_rounded(conditions.link))
        question = here, tuple(settings)
        if (answer := self._answers.get(question)) is None:
            answer = self._answers[question] = self._answer(conditions, here, settings)
        simulated, losses = self._losses.get(question, (-1, answer))
        if simulated != self._simulated:  # rarely: what was simulated is kept
            losses = self._losses_elsewhere(here, settings)
            self._losses[question] = self._simulated, losses
        return answer + ELSEWHERE_SHARE * losses

    def _answer(self, conditions: Conditions, here: Conditions, settings: Sequence[TransferSettings]) -> Floats:
        logs = np.full(len(settings), np.inf)
        for index in (0, *self._shortlist(conditions, settings)):
            logs[index] = self._simulate(here, settings[index])
        best = settings[int(logs.argmin())]
        for index, setting in enumerate(settings):
            if np.isinf(logs[index]) and _are_neighbours(setting, best):
                logs[index] = self._simulate(here, setting)
        return logs

    def _losses_elsewhere(self, here: Conditions, settings: Sequence[TransferSettings]) -> Floats:
        """Return (settings,) mean loss under the other conditions; what was no candidate there, as the worst one's."""
        losses = np.zeros(len(settings))
        others = [each for place, each in self._kept.items() if place != here]
        for each in others:
            best, worst = min(each.values()), max(each.values())
            losses += [each.get(setting, worst) - best for setting in settings]
        return losses / max(1, len(others))

    def _shortlist(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> list[int]:
        if self._proposes is None:
            return list(range(len(settings)))
        order = np.argsort(self._proposes.log_seconds(conditions, settings), kind="stable")
        return [int(index) for index in order[: self._length]]

    def _simulate(self, here: Conditions, setting: TransferSettings) -> float:
        kept = self._kept.setdefault(here, {})
        if setting not in kept:
            self._simulated += 1
            costs = [self._costs or ()] * here.participants
            kept[setting] = math.log(steady_step_seconds(costs, here.link, setting, block_bytes=here.block_bytes))
        return kept[setting]


def _rounded(link: SharedLink) -> SharedLink:
    """Return nearly the same link, one of few."""
    return SharedLink(
        _round_log(link.free_bytes_per_second, BANDWIDTH_PARTS),
        _round_log(link.latency_seconds, FIXED_COST_PARTS),
        _round_log(link.slice_seconds, FIXED_COST_PARTS),
        link.device_bytes_per_second,
    )


def _are_neighbours(one: TransferSettings, other: TransferSettings) -> bool:
    """Say whether neither their slices nor their credits are more than a factor of 2 apart."""
    pairs = ((one.slice_bytes, other.slice_bytes), (one.credit_bytes, other.credit_bytes))
    return all(a and b and a <= 2 * b and b <= 2 * a for a, b in pairs)


def _round_log(figure: float, parts: int) -> float:
    return 2.0 ** (round(math.log2(figure) * parts) / parts) if figure else 0.0


def default_predictor() -> Predictor:
    """Return what AutoByte asks unless it is told otherwise; docs/communication-tuning.md says why this one."""
    return SimulatedShortlist(AnalyticPredictor())
