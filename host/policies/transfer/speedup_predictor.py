"""Prediction of how much faster a step would be with another setting, by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import metadata
from typing import Protocol

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.steady_steps import steady_step_seconds
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.link_conditions import Conditions

Floats = npt.NDArray[np.float64]

ENTRY_POINTS = "csd_emu.predictors"
# Conditions of which it is kept what settings take.
MOST_KEPT = 32
# A setting whose slices alone make a step so much longer than the best one so far is not simulated.
HOPELESS = 1.2


class Predictor(Protocol):
    """Knows how settings compare."""

    name: str

    def log_seconds(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> Floats:
        """Return (settings,) log of step seconds, less a constant that all of them share.

        So the difference of two is the log of one's speed-up over the other.
        """


def find_predictor(name: str) -> Predictor:
    """Return the predictor of a name: ``model``, or one that an installed package has an entry point for.

    Raises:
        ConfigurationError: there is none.
    """
    if name == SimulatedSettings.name:
        return SimulatedSettings()
    for point in metadata.entry_points(group=ENTRY_POINTS, name=name):
        predictor: Predictor = point.load()()
        return predictor
    raise ConfigurationError(
        f"communication.predictor: no installed package has the entry point {name!r} in {ENTRY_POINTS}; install "
        f"csd-emu again, or choose {SimulatedSettings.name}"
    )


class SimulatedSettings:
    """Simulates settings (`csd_emu.perfmodel.overlap.steady_steps`), each drive with what it has of the link."""

    name = "model"

    def __init__(self) -> None:
        """Know nothing yet."""
        self._kept: dict[Conditions, dict[TransferSettings, float]] = {}

    def log_seconds(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> Floats:
        """See `Predictor`."""
        kept = self._kept.setdefault(conditions, {})
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        # Larger slices first, so that what must be slower is known before it is simulated.
        for setting in sorted(set(settings) - kept.keys(), key=lambda each: each.slice_bytes or 0, reverse=True):
            least = _least_seconds(conditions, setting)
            hopeless = kept and least > HOPELESS * math.exp(min(kept.values()))
            kept[setting] = math.log(least if hopeless else _simulate(conditions, setting))
        return np.array([kept[setting] for setting in settings])


def _simulate(here: Conditions, setting: TransferSettings) -> float:
    costs = [each.costs for each in here.drives] or [here.costs] * here.participants
    own = [each.own for each in here.drives]
    # What each has of the link while the others send is its own: together they have no more.
    link = SharedLink(sum(each.bytes_per_second for each in own), 0.0) if own else here.link
    return steady_step_seconds(costs, link, setting, block_bytes=here.block_bytes, own=own)


def _least_seconds(here: Conditions, setting: TransferSettings) -> float:
    """Return what no step is shorter than: all slices one way, one after the other."""
    sizes = [tensor.size_bytes for layer in here.costs for tensor in layer.tensors]
    slices = sum(math.ceil(size / (setting.slice_bytes or size)) for size in sizes if size)
    part = OwnLink(here.link.bytes_per_second / here.participants, 0.0, here.link.slice_seconds)
    own = [each.own for each in here.drives] or [part]
    return max(slices * each.slice_seconds + sum(sizes) / each.bytes_per_second for each in own)
