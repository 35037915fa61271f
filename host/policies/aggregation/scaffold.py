"""SCAFFOLD, the host's half, and FedBN: strategies with a client program of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Le

from firmware_agent.common.slices import Array
from host.config.plugins.kinds import STRATEGY
from host.policies.aggregation.fedavg import FedAvg
from host.policies.aggregation.strategy import Contribution, DriveHistory, PlainStrategy, check_names, mean_of_buffers

_CONTROL = "control/"


@STRATEGY.register("scaffold", "Local steps corrected by control variates, which cross with the weights.")
class Scaffold(PlainStrategy):
    """Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning" (ICML 2020), Algorithm 1.

    Of N drives those in S return weights y_i and the change of their control variate c_i:

        ``x <- x + learning_rate / |S| sum_i (y_i - x)``,  ``c <- c + 1/N sum_i (c_i+ - c_i)``,

    with c and all c_i from 0. The drives' half is the client program of the same name. Sums are float64.
    """

    client = "scaffold"

    def __init__(self, learning_rate: Annotated[float, Gt(0), Le(100)] = 1.0, *, parameters: Collection[str]) -> None:
        """Move `parameters` by `learning_rate` times the drives' mean update."""
        self._learning_rate, self._parameters = learning_rate, frozenset(parameters)
        self._control: dict[str, Array] = {}
        self._drives = 0

    def configure(self, _: int, drives: Mapping[str, DriveHistory]) -> dict[str, dict[str, Array]]:
        """Return the server's control variate for each chosen drive."""
        self._drives = max(self._drives, len(drives))
        return {device: dict(self._control) for device, each in drives.items() if each.chosen}

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the new weights, and move the control variate on (see `Strategy.aggregate`)."""
        new = mean_of_buffers(contributions, self._parameters)
        share = len(contributions) / max(self._drives, len(contributions))
        for name, before in global_weights.items():
            if name in self._parameters:
                start = before.astype(np.float64)
                update = _mean([part.weights[name] for part in contributions]) - start
                new[name] = np.asarray(start + self._learning_rate * update, before.dtype)
        for name in (each for each in self._parameters if _CONTROL + each in contributions[0].tensors):
            change = _mean([part.tensors[_CONTROL + name] for part in contributions])
            control = share * change + self._control.get(name, np.zeros(change.shape)).astype(np.float64)
            self._control[name] = np.asarray(control, global_weights[name].dtype)
        return {name: new[name] for name in global_weights}

    def state(self) -> dict[str, Array]:
        """Return the control variate, and how many drives there are."""
        return {name: array for name, array in self._control.items()} | {_CONTROL: np.array([self._drives])}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on with these (see `Strategy.load_state`)."""
        kept = dict(state)
        self._drives = int(kept.pop(_CONTROL, np.zeros(1))[0])
        check_names(kept, set(kept) & self._parameters)
        self._control = kept


@STRATEGY.register("fedbn", "FedAvg whose drives keep their batch normalisation to themselves.")
class FedBn(FedAvg):
    """Li et al., "FedBN: federated learning on non-IID features via local batch normalization" (ICLR 2021).

    Parameters and statistics of batch normalisation stay in the drives and do not cross; the host's copy of the model,
    by which accuracy is judged, keeps those that it began with.
    """

    client = "fedbn"


def _mean(arrays: Sequence[Array]) -> npt.NDArray[np.float64]:
    return np.asarray(np.mean([array.astype(np.float64) for array in arrays], axis=0), np.float64)
