"""FedAvg with clipping and noise: the mean tells little of any single drive."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from firmware_agent.common.slices import Array
from host.config.plugins.kinds import STRATEGY
from host.policies.aggregation.clipping import Clipped
from host.policies.aggregation.strategy import Contribution, PlainStrategy, Stateless, check_names, mean_of_buffers

_ROUNDS = "rounds"


class _PlainMean(Stateless):
    """The mean in which all drives count the same; buffers by samples."""

    def __init__(self, parameters: Collection[str]) -> None:
        self._parameters = frozenset(parameters)

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        new = mean_of_buffers(contributions, self._parameters)
        for name in self._parameters:
            parts = [part.weights[name].astype(np.float64) for part in contributions]
            new[name] = np.asarray(np.mean(parts, axis=0), np.float64)
        return {name: new[name] for name in global_weights}


@STRATEGY.register("private_fedavg", "The plain mean of clipped updates with Gaussian noise on it.")
class PrivateFedAvg(PlainStrategy):
    """McMahan et al., "Learning differentially private recurrent language models" (ICLR 2018), Algorithm 1.

    Each of n updates u_k is shortened to the norm `clip`; then

        ``w <- w + 1/n sum_k u_k + N(0, (noise clip / n)^2)``.

    All drives count the same. Buffers are averaged as they come, without noise: use models that have none. The noise is
    the host's, which sees each update: who does not trust it adds noise in a client program. What a run is worth in
    epsilon and delta an accountant of a library says, from `noise`, the share of drives in a round, and the rounds.
    """

    def __init__(
        self,
        clip: Annotated[float, Gt(0), Le(1e6)] = 1.0,
        noise: Annotated[float, Ge(0), Le(1e3)] = 0.1,
        noise_seed: Annotated[int, Ge(0), Le(2**31 - 1)] = 0,
        *,
        parameters: Collection[str],
    ) -> None:
        """Clip and add noise.

        Args:
            clip: the largest L2 norm of a drive's update.
            noise: standard deviation of the noise on the sum of the updates, over `clip`.
            noise_seed: of the noise; keep it to yourself.
            parameters: names of the weights that are trained.
        """
        self._clip, self._noise, self._seed, self._parameters = clip, noise, noise_seed, frozenset(parameters)
        self._clipped = Clipped(_PlainMean(parameters), clip, parameters)
        self._rounds = 0

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the new weights (see `Strategy.aggregate`)."""
        self._rounds += 1
        generator = np.random.default_rng([self._seed, self._rounds])
        mean, deviation = self._clipped.aggregate(global_weights, contributions), self._noise * self._clip
        for name in sorted(self._parameters):
            noise = generator.normal(0.0, deviation / len(contributions), mean[name].shape)
            mean[name] = np.asarray(noise + mean[name].astype(np.float64), global_weights[name].dtype)
        return mean

    def state(self) -> dict[str, Array]:
        """Return how many rounds have had their noise."""
        return {_ROUNDS: np.array([self._rounds])}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on behind so many rounds (see `Strategy.load_state`)."""
        check_names(state, {_ROUNDS})
        self._rounds = int(state[_ROUNDS][0])
